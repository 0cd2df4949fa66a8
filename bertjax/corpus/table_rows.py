"""Read the rows of a table in text, CSV or TSV, and documents from one of its columns."""

import csv
from collections.abc import Iterator

from bertjax.corpus.documents import Document, clean, decode_bytes
from bertjax.corpus.format import ReadOptions, Table, missing_field
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
    rows = read_cells(path, lines, header, ", or give --format text", **dialect)
    columns = next(rows)
    if options.text_field not in columns:
        raise missing_field(path, "column", options.text_field, columns, exists=False)
    column = columns.index(options.text_field)
    for row in rows:
        yield Document(clean(row[column]), lines.take_replaced())


def read_cells(
    path: str, lines: "TableLines", header: str, remedy: str = "", **dialect
) -> Iterator[list[str]]:
    """Yield the names of the columns, then the cells of every row; see `read_rows`.

    Args:
      path: The file, for error messages.
      lines: The lines after the header.
      header: The first line.
      remedy: What else to do about a malformed row, in messages.
      **dialect: Options of `csv.reader`.

    Raises:
      UserError: The table is empty, a row has another number of cells, or its quotes do not match.
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    try:
        # Spreadsheets write a byte order mark.
        columns = next(csv.reader([header.removeprefix("\ufeff")], **dialect), [])
        if not columns:
            raise UserError(f"{path} is empty: expected a header with the names of columns")
        yield columns
        for row in csv.reader(lines, **dialect):
            if len(row) == len(columns):
                yield row
            elif row:
                raise UserError(
                    f"{path}:{lines.number}: got {len(row)} field(s), expected {len(columns)} as "
                    f"in the header; fix the row{remedy}"
                )
    except csv.Error as error:
        raise UserError(
            f"{path}:{lines.number}: the row that ends here is malformed ({error}); fix its quotes "
            f"or replace the truncated file{remedy}"
        ) from None


def read_table(path: str, lines: "TableLines", header: str, **dialect) -> Table:
    """Read all columns of a table; see `read_rows`."""
    rows = read_cells(path, lines, header, **dialect)
    columns = next(rows)
    if repeated := [name for name in columns if columns.count(name) > 1]:
        raise UserError(f"{path}:1: column {repeated[0]!r} occurs twice; rename or remove one")
    cells, locations = [], []
    for row in rows:
        cells.append(row)
        locations.append(f"{path}:{lines.number}")
    values = zip(*cells, strict=True) if cells else ((),) * len(columns)
    return Table(path, dict(zip(columns, map(list, values), strict=True)), locations)


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
