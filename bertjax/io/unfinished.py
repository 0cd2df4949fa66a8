"""Keep finished parts of an output in a folder next to it, until the output is complete.

A command that was interrupted resumes from these parts if it is given again with equal settings.
"""

import contextlib
import fcntl
import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.io import copies, storage
from bertjax.io.files import read_json, write_json

_LOCK, _SETTINGS = "lock", "settings.json"


@contextlib.contextmanager
def parts_folder(output: Any, settings: Mapping[str, Any]) -> Iterator[pathlib.Path]:
    """A context manager that yields the folder of the parts of an output file.

    The folder is removed when the block completes, and when it fails without any finished part.

    Args:
      output: The file. The folder is `.NAME.unfinished` next to it, or in the cache for a file of a
        bucket.
      settings: Values for JSON that determine the output, such as the model and options.

    Raises:
      UserError: there are parts with other settings, or another process writes the output.
    """
    path = storage.to_path(output)
    folder = path.with_name(f".{path.name}.unfinished")
    if storage.is_remote(output):
        folder = copies.cache_path("unfinished", path)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is writing {output}: wait for it, or give another file"
            ) from None
        _check_settings(folder, json.loads(json.dumps(settings)))
        try:
            yield folder
        except BaseException:
            if not _has_parts(folder):
                shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)


def _check_settings(folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
    if not _has_parts(folder):
        write_json(folder / _SETTINGS, settings)
        return
    found = read_json(folder / _SETTINGS)
    for name, value in settings.items():
        if found.get(name) != value:
            raise UserError(
                f"{folder} has finished parts with {name}={found.get(name)!r}: got {value!r}; "
                "give the former options to resume, or remove this folder to start anew"
            )


def _has_parts(folder: pathlib.Path) -> bool:
    names = (path.name for path in folder.rglob("*") if path.is_file())
    # A process that was killed while it wrote a file may have left one that ends in .part.
    return any(name not in (_LOCK, _SETTINGS) and not name.endswith(".part") for name in names)
