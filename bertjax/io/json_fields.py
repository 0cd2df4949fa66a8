"""Read JSON of users: a whole file, and the value of a key; an error names the place."""

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
_MOST_KEYS = 8
"""Keys that an error lists of an object that lacks the right one."""


def load_json(path: pathlib.Path, layout: str, *, distinct_keys: bool = False) -> Any:
    """Reads a JSON file, with or without a byte order mark; `layout` says what was expected of it.

    Raises:
      UserError: it cannot be read, is not UTF-8 or not JSON; or with `distinct_keys` an object has
        a key twice, of which JSON readers take the last.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}; expected a JSON file in {layout}"
        ) from None
    try:
        # Control characters as they stand are not JSON, but no reason to refuse a text.
        made = functools.partial(_distinct, str(path)) if distinct_keys else None
        return json.loads(text, strict=False, object_pairs_hook=made)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} line {error.lineno}: not JSON ({error.msg}, column {error.colno}); expected "
            f"one "
            f"JSON object in {layout}"
        ) from None


def _distinct(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(key for key, _ in pairs)
    repeated = next((key for key, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise UserError(
            f"{path}: got the key {repeated!r} {counts[repeated]} times, expected each key once; "
            "remove all but one"
        )
    return dict(pairs)


def get_field(where: str, node: Any, key: str, kind: type, layout: str) -> Any:
    """The value of a key, of the kind that it has to be; `where` names the object.

    Raises:
      UserError: there is no such value, or it is text that no file can hold.
    """
    if type(node) is not dict:
        raise UserError(f"{where} is {_NAMES[type(node)]}, expected an object with {key!r}")
    if key not in node:
        keys = ", ".join(map(repr, list(node)[:_MOST_KEYS])) or "nothing"
        raise UserError(f"{where} has no {key!r} (it has {keys}): expected {layout}")
    value = node[key]
    if type(value) is not kind:
        raise UserError(f"{where}: {key!r} is {_NAMES[type(value)]}, expected {_NAMES[kind]}")
    if kind is str:
        check_characters(f"{where}: {key!r}", value)
    return value


def check_characters(where: str, text: str) -> None:
    """Refuses text that no file can hold.

    Raises:
      UserError: there is half of a surrogate pair in it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where} has half of a surrogate pair (\\u{ord(text[error.start]):04x}) at character "
            f"{error.start}: expected whole characters; fix the file"
        ) from None
