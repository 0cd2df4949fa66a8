"""Read documents from a column of a table in text: CSV or TSV."""

import csv
from collections.abc import Iterator

from bertjax.corpus.documents import Document, clean, decode_bytes
from bertjax.corpus.format import ReadOptions, missing_field
from bertjax.errors import UserError
from bertjax.io.lines import read_lines

MAX_ROW_BYTES = 1 << 26
"""Maximum size of a line, and of a field, which cannot be read in pieces."""


def read_rows(
    path: str, lines: "TableLines", header: str, options: ReadOptions, **dialect
) -> Iterator[Document]:
    """Read a document from every row of a table.

    Args:
      path: The file, for error messages.
      lines: The lines after the header.
      header: The first line.
      options: Names the column.
      **dialect: Options of `csv.reader`.
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    try:
        columns = next(csv.reader([header], **dialect), [])
        if not columns:
            raise UserError(f"{path} is empty: expected a header with the names of columns")
        if options.text_field not in columns:
            raise missing_field(path, "column", options.text_field, columns, exists=False)
        column = columns.index(options.text_field)
        for row in csv.reader(lines, **dialect):
            if len(row) == len(columns):
                yield Document(clean(row[column]), lines.take_replaced())
            elif row:
                raise UserError(
                    f"{path}:{lines.number}: got {len(row)} field(s), expected {len(columns)} as "
                    "in the header; fix the row, or give --format text"
                )
    except csv.Error as error:
        raise UserError(
            f"{path}:{lines.number}: the row that ends here is malformed ({error}); fix its quotes "
            "or replace the truncated file, or give --format text"
        ) from None


class TableLines:
    """An iterator over the lines of a file as text, which counts them and replaced bytes."""

    def __init__(self, path: str, errors: str):
        self._path, self._errors = path, errors
        self._lines = read_lines(path, MAX_ROW_BYTES)
        self._replaced, self.number = 0, 0

    def __iter__(self) -> "TableLines":
        return self

    def __next__(self) -> str:
        offset, line = next(self._lines)
        self.number += 1
        if len(line) >= MAX_ROW_BYTES // 2 and not line.endswith(b"\n"):
            raise UserError(
                f"{self._path}:{self.number}: got a line over 64 MiB, expected less; split it"
            )
        text, replaced = decode_bytes(self._path, offset, line, self._errors)
        self._replaced += replaced
        return text

    def take_replaced(self) -> int:
        """Return the number of replaced byte sequences since the last call."""
        replaced, self._replaced = self._replaced, 0
        return replaced
