"""JSON files that hold one object."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads an object.

    Raises:
      UserError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a JSON {type(content).__name__}, wanted an object")
    return content


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes an object as transformers does."""
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
