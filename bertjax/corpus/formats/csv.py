"""CSV: a header with the names of columns, and fields that may be quoted (RFC 4180).

The separator is a comma, or a semicolon if the header has one and no comma.
"""

from collections.abc import Iterator

from bertjax.corpus.documents import Document
from bertjax.corpus.format import ReadOptions, Table, TextFormat
from bertjax.corpus.tables import TableLines, read_rows, read_table
from bertjax.io import file_kinds


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from a column of every row after the header."""
    lines = TableLines(path, options.errors)
    header = next(lines, "")
    yield from read_rows(path, lines, header, options, delimiter=_separator(header), strict=True)


def read_all(path: str) -> Table:
    """Read all columns; a first line "# ..." without separator is a comment."""
    lines = TableLines(path, "strict")
    header = next(lines, "")
    if header.startswith("# ") and not set(",;") & set(header):  # the canary of EWoK
        header = next(lines, "")
    return read_table(path, lines, header, delimiter=_separator(header), strict=True)


def _separator(header: str) -> str:
    # Rows are parsed by the header's separator, so that a text in a column may have any other.
    return ";" if ";" in header and "," not in header else ","


FORMAT = TextFormat(read, kinds=(file_kinds.CSV,), has_fields=True, read_table=read_all)
