"""CSV: a header with the names of columns, and fields that may be quoted (RFC 4180).

The separator is a comma, a semicolon if the header has one and no comma, or that of a first line
`sep=;`, as Excel writes it.
"""

import re
from collections.abc import Iterator

from bertjax.corpus.documents import Document
from bertjax.corpus.format import ReadOptions, Table, TextFormat
from bertjax.corpus.tables import TableLines, read_rows, read_table
from bertjax.io import file_kinds

_EXCEL = re.compile(r'"?sep=(.)"?', re.IGNORECASE)


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from a column of every row after the header."""
    lines = TableLines(path, options.errors)
    header, separator = _read_header(lines)
    yield from read_rows(path, lines, header, options, delimiter=separator, strict=True)


def read_all(path: str) -> Table:
    """Read all columns; a first line "# ..." without separator is a comment."""
    lines = TableLines(path, "strict")
    header, separator = _read_header(lines)
    if header.startswith("# ") and not set(",;") & set(header):  # the canary of EWoK
        header, separator = _read_header(lines)
    return read_table(path, lines, header, delimiter=separator, strict=True)


def _read_header(lines: TableLines) -> tuple[str, str]:
    """Return the header, and the separator of all rows.

    A text in a column may have any other separator.
    """
    header = next(lines, "")
    if found := _EXCEL.fullmatch(header.removeprefix("\ufeff").rstrip("\r\n")):
        return next(lines, ""), found[1]
    return header, ";" if ";" in header and "," not in header else ","


FORMAT = TextFormat(read, kinds=(file_kinds.CSV,), has_fields=True, read_table=read_all)
