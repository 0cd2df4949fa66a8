"""CSV: a header with the names of columns, and fields that may be quoted (RFC 4180).

The separator is a comma, or a semicolon if the header has one and no comma.
"""

from collections.abc import Iterator

from bertjax.corpus.documents import Document
from bertjax.corpus.format import ReadOptions, TextFormat
from bertjax.corpus.table_rows import TableLines, read_rows
from bertjax.io import file_kinds


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from a column of every row after the header."""
    lines = TableLines(path, options.errors)
    header = next(lines, "")
    # Rows are parsed by the header's separator, so that a text in a column may have any other.
    separator = ";" if ";" in header and "," not in header else ","
    yield from read_rows(path, lines, header, options, delimiter=separator, strict=True)


FORMAT = TextFormat(read, kinds=(file_kinds.CSV,), has_fields=True)
