"""Read and write small files; writing is atomic, and a full disk is reported as one line."""

import errno
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.io import storage

CACHE_VARIABLE = "BERTJAX_CACHE"
"""Names another folder."""


def cache_directory(named: str = "") -> pathlib.Path:
    """The folder: the one named, else the environment's, else the user's."""
    home = pathlib.Path.home() / ".cache" / "bertjax"
    return pathlib.Path(named or os.environ.get(CACHE_VARIABLE) or home)


def write_atomic(path: pathlib.Path, content: bytes) -> None:
    """Replaces a file so that a crash leaves the old content or the new one, never a part.

    Raises:
      OSError: the file cannot be written; the old content stays.
    """
    if storage.is_remote(path):
        # A bucket shows an object only once it is complete.
        storage.with_retries(lambda: path.write_bytes(content), path)
        return
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def fsync(path: pathlib.Path) -> None:
    """Brings a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_output(path: pathlib.Path, text: str) -> None:
    """Writes a file and makes the folders above it.

    Raises:
      UserError: the disk is full, or may not be written; what stood there stands there still.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}; fix that and run the same command "
            "again: finished files and checkpoints are kept"
        ) from error


_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_TEXTS = tuple(os.strerror(code) for code in _FULL)


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically, also in case of a power loss."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_hf_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically, in the format of transformers."""
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    write_text(path, text + "\n")


def write_text(path: pathlib.Path, text: str) -> None:
    """Replaces a text file atomically.

    Raises:
      UserError: the disk is full.
    """
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        if is_disk_full(error):
            raise UserError(f"{path}: the disk is full; free some space and start again") from error
        raise


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON file that holds an object.

    Raises:
      UserError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(storage.with_retries(lambda: path.read_text(encoding="utf-8"), path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a JSON {type(content).__name__}, expected an object")
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
