"""Small files that are there whole or not at all, and the errors of a full disk."""

import errno
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax.data import storage
from bertjax.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_TEXTS = tuple(os.strerror(code) for code in _FULL)


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file that is there whole, also after a loss of power, or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: pathlib.Path, text: str) -> None:
    """Replaces a text file in one step.

    Raises:
      UserError: the disk is full, and the file is as it was; or there is no right to write it.
    """
    if storage.is_remote(path):
        # A bucket shows a file once it is whole.
        storage.patiently(lambda: path.write_text(text), path)
        return
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if is_disk_full(error):
            raise UserError(f"{path}: the disk is full; free some space and start again") from error
        raise


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON file that holds an object.

    Raises:
      UserError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(storage.patiently(lambda: path.read_text(encoding="utf-8"), path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a JSON {type(content).__name__}, wanted an object")
    return content


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that there is no room left.

    Libraries that write through C++ wrap the code in a text of their own.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        if any(text in str(error) for text in _FULL_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False
