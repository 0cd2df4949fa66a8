"""JSON lines: a field of the object on every line is a document."""

import json
import re
from collections.abc import Iterator
from typing import Any

from bertjax.corpus.documents import Document, decode, replace_surrogates
from bertjax.corpus.format import ReadOptions, Table, TextFormat, missing_field
from bertjax.errors import UserError
from bertjax.io import file_kinds
from bertjax.io.lines import read_records

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escaped surrogate, alone or in a pair."""


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from a field of the JSON object on every line."""
    for where, decoded in _lines(path, options.errors):
        row = _parse(decoded.text, where, f'a string "{options.text_field}"')
        text = _text(row, where, options.text_field)
        yield Document(text.strip(), decoded.replaced)


def read_all(path: str) -> Table:
    """Read all fields; a field that some object does not have is None there."""
    rows, locations = [], []
    for where, decoded in _lines(path, "strict"):
        rows.append(_parse(decoded.text, where, "the fields of an example"))
        locations.append(where)
    names = dict.fromkeys(name for row in rows for name in row)
    return Table(path, {name: [row.get(name) for row in rows] for name in names}, locations)


def _lines(path: str, errors: str) -> Iterator[tuple[str, Document]]:
    """Yield (location, text) of every line that is not blank."""
    for number, (offset, line) in enumerate(read_records(path), start=1):
        if line.strip():
            yield f"{path}:{number}", decode(path, offset, line, errors)


def _parse(line: str, where: str, content: str) -> dict[str, Any]:
    """Return the JSON object of a line, with `?` for every lone surrogate."""
    try:
        row = json.loads(line)
        if _SURROGATE.search(line):
            row = json.loads(replace_surrogates(json.dumps(row, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        path = where.rpartition(":")[0]
        is_multiline = line in ("{", "[")
        fix = file_kinds.remedy(file_kinds.JSON_ARRAY, path) if is_multiline else "fix the line"
        raise UserError(f"{where}: not a JSON object ({error}); {fix}") from None
    if not isinstance(row, dict):
        raise UserError(
            f"{where}: expected an object with {content}, got {line[:60]!r}; fix the line "
            "or give another --format"
        )
    return row


def _text(row: dict[str, Any], where: str, field: str) -> str:
    """Return the text field of a JSON object."""
    text = row.get(field)
    if not isinstance(text, str):
        strings = [name for name, value in row.items() if isinstance(value, str)]
        raise missing_field(where, "field", field, strings, exists=field in row)
    return text


def _starts(path: str, line: bytes) -> bool:
    has_name = file_kinds.detect_by_name(path) is file_kinds.JSON_LINES
    return has_name or re.match(rb'\s*\{\s*"[^"]*"\s*:', line) is not None


FORMAT = TextFormat(
    read, kinds=(file_kinds.JSON_LINES,), has_fields=True, starts=_starts, read_table=read_all
)
