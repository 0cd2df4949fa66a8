"""Read and write small files, and check the fields of JSON that users wrote.

Writing is atomic, and a full disk is reported as one line.
"""

import errno
import functools
import json
import os
import pathlib
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.io import storage

CACHE_VARIABLE = "BERTJAX_CACHE"
"""Environment variable with the path of the cache folder."""


def cache_directory(named: str = "") -> pathlib.Path:
    """Return the cache folder: `named`, else BERTJAX_CACHE, else ~/.cache/bertjax."""
    home = pathlib.Path.home() / ".cache" / "bertjax"
    return pathlib.Path(named or os.environ.get(CACHE_VARIABLE) or home)


def write_atomic(path: pathlib.Path, content: bytes) -> None:
    """Replace a file atomically: a crash leaves the old or the new content, never a part.

    Several processes and threads may write the same file; the last one wins. One that is killed
    may leave a hidden file that ends in `.part`.

    Raises:
      OSError: The file cannot be written; the old content is kept.
    """
    if storage.is_remote(path):
        # In a bucket an object becomes visible only once it is complete.
        storage.with_retries(lambda: path.write_bytes(content), path)
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def fsync(path: pathlib.Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_output(path: pathlib.Path, text: str) -> None:
    """Write a text file atomically, and create the folders above it.

    Raises:
      UserError: The file cannot be written; the old content is kept.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; fix the cause and run the same command again: "
            "finished files and checkpoints are kept"
        ) from error


_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_DISK_FULL_TEXTS = tuple(os.strerror(code) for code in _DISK_FULL)


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, also in case of a power loss."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_hf_json(path: pathlib.Path, content: Mapping[str, Any] | list[Any]) -> None:
    """Write a JSON file atomically, formatted as by transformers."""
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    write_text(path, text + "\n")


def write_text(path: pathlib.Path, text: str) -> None:
    """Replace a text file atomically.

    Raises:
      UserError: The disk is full.
    """
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        if is_disk_full(error):
            raise UserError(
                f"cannot write {path}: the disk is full; free some space and run the command again"
            ) from error
        raise


def read_text(path: pathlib.Path) -> str:
    """Read a whole text file, without its byte order mark.

    Raises:
      UserError: The file is not UTF-8.
    """
    data = path.read_bytes()
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise UserError(
            f"{path} line {line}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8; "
            "convert the file to UTF-8"
        ) from None


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON file that contains an object.

    Raises:
      UserError: The file cannot be read, is not JSON, or contains another type.
    """
    try:
        content = json.loads(storage.with_retries(lambda: path.read_text(encoding="utf-8"), path))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} as JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: got a JSON {type(content).__name__}, expected an object")
    return content


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, reports a full disk or quota.

    The message is checked too: libraries that write through C++ raise errors without the code.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            return True
        if any(text in str(error) for text in _DISK_FULL_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


_JSON_TYPE_NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
_MAX_LISTED_KEYS = 8
"""Number of keys that an error lists for an object without the expected one."""


def load_json(path: pathlib.Path, layout: str, *, distinct_keys: bool = False) -> Any:
    """Read a JSON file, with or without a byte order mark.

    Args:
      path: The file.
      layout: The expected format, for error messages.
      distinct_keys: Whether an object with a repeated key is refused; JSON readers otherwise use
        the last value.

    Raises:
      UserError: The file cannot be read, is not UTF-8 or not JSON, or has a repeated key.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; expected a JSON file in {layout}"
        ) from None
    try:
        # Unescaped control characters are not valid JSON, but harmless in a text.
        hook = functools.partial(_check_distinct, str(path)) if distinct_keys else None
        return json.loads(text, strict=False, object_pairs_hook=hook)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} line {error.lineno}: not JSON ({error.msg}, column {error.colno}); expected "
            f"one JSON object in {layout}"
        ) from None


def _check_distinct(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(key for key, _ in pairs)
    repeated = next((key for key, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise UserError(
            f"{path}: got the key {repeated!r} {counts[repeated]} times, expected each key once; "
            "remove all but one"
        )
    return dict(pairs)


def get_field(where: str, node: Any, key: str, kind: type, layout: str) -> Any:
    """Get the value of a key of a JSON object, checking its type.

    Args:
      where: Name of the object, for error messages.
      node: The object.
      key: The key.
      kind: The expected type of the value.
      layout: The expected format, for error messages.

    Raises:
      UserError: There is no such value, it has another type, or it is not valid Unicode.
    """
    if type(node) is not dict:
        raise UserError(
            f"{where}: got {_JSON_TYPE_NAMES[type(node)]}, expected an object with {key!r}"
        )
    if key not in node:
        keys = ", ".join(map(repr, list(node)[:_MAX_LISTED_KEYS])) or "no keys"
        raise UserError(f"{where} has no {key!r}: got {keys}, expected {layout}")
    value = node[key]
    if type(value) is not kind:
        got, expected = _JSON_TYPE_NAMES[type(value)], _JSON_TYPE_NAMES[kind]
        raise UserError(f"{where}: {key!r}: got {got}, expected {expected}")
    if kind is str:
        check_characters(f"{where}: {key!r}", value)
    return value


def check_characters(where: str, text: str) -> None:
    """Check that a text can be encoded as UTF-8.

    Raises:
      UserError: The text contains half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: got half of a surrogate pair (\\u{ord(text[error.start]):04x}) at character "
            f"{error.start}, expected valid Unicode; fix the file"
        ) from None
