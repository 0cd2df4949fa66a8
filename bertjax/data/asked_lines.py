"""Lines in which a person asks a fine-tuned model: fields with tabs between them, or JSON."""

import json
from collections.abc import Sequence

from bertjax.errors import UserError

Line = tuple[str, str]
"""Where a line stands, and the line."""

_SHOWN = 60


def fields(line: Line, names: Sequence[str]) -> dict[str, str]:
    """The texts of a line, by name.

    Raises:
      UserError: it has others, or not as many.
    """
    where, text = line
    if text.lstrip().startswith("{"):
        found = json_object(line, dict.fromkeys(names, "a text"))
        if all(isinstance(found[name], str) for name in names):
            return {name: found[name] for name in names}
        raise UserError(f"{where}: wanted a text for each of {', '.join(names)}: mend the line")
    parts = text.split("\t")
    if len(parts) != len(names):
        example = json.dumps(dict.fromkeys(names, "..."))
        raise UserError(
            f"{where}: {len(parts)} field(s), wanted {len(names)} with tabs between them "
            f"({', '.join(names)}), or {example}"
        )
    return dict(zip(names, parts, strict=True))


def json_object(line: Line, wanted: dict[str, str]) -> dict:
    """A JSON object with the wanted keys, of which the values tell what they hold.

    Raises:
      UserError: it is none, or lacks one.
    """
    where, text = line
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not wanted.keys() <= found.keys():
        keys = ", ".join(f'"{name}" ({what})' for name, what in wanted.items())
        raise UserError(
            f"{where}: wanted a JSON object with {keys}, got {text[:_SHOWN]!r}: mend the line"
        )
    return found
