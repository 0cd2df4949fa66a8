"""Tables with tabs (TSV): a header with the names of columns; quotes are text."""

import csv
from collections.abc import Iterator

from bertjax.corpus.documents import Document
from bertjax.corpus.format import ReadOptions, Table, TextFormat
from bertjax.corpus.tables import TableLines, read_rows, read_table
from bertjax.io import file_kinds


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from a column of every row after the header."""
    lines = TableLines(path, options.errors)
    header = next(lines, "")
    yield from read_rows(path, lines, header, options, delimiter="\t", quoting=csv.QUOTE_NONE)


def read_all(path: str) -> Table:
    """Read all columns."""
    lines = TableLines(path, "strict")
    header = next(lines, "")
    return read_table(path, lines, header, delimiter="\t", quoting=csv.QUOTE_NONE)


FORMAT = TextFormat(read, kinds=(file_kinds.TSV,), has_fields=True, read_table=read_all)
