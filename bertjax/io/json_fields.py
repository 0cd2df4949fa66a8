"""Read JSON files of users, with errors that name the line or the object."""

import functools
import json
import pathlib
from collections import Counter
from typing import Any

from bertjax.errors import UserError
from bertjax.io.lines import read_text

_NAMES = {
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
        raise UserError(f"{where}: got {_NAMES[type(node)]}, expected an object with {key!r}")
    if key not in node:
        keys = ", ".join(map(repr, list(node)[:_MAX_LISTED_KEYS])) or "no keys"
        raise UserError(f"{where} has no {key!r}: got {keys}, expected {layout}")
    value = node[key]
    if type(value) is not kind:
        raise UserError(f"{where}: {key!r}: got {_NAMES[type(value)]}, expected {_NAMES[kind]}")
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
