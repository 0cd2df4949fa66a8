"""Read tables: documents from one column, or all columns, of text, CSV, TSV and Arrow data."""

import contextlib
import csv
import json
from collections.abc import Iterator
from typing import Any

from bertjax.corpus.documents import Document, clean, decode, decode_bytes
from bertjax.corpus.format import ReadOptions, Table, import_extra, missing_field
from bertjax.errors import UserError
from bertjax.io.lines import MAX_RECORD_BYTES, read_records

PYARROW_EXTRA = "parquet"
"""The extra of bertjax that installs pyarrow."""

_SEPARATORS = "\t|;,"


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
      remedy: Further advice about a malformed row, in messages.
      **dialect: Options of `csv.reader`.

    Raises:
      UserError: The table is empty, a row has another number of cells, or its quotes do not match.
    """
    csv.field_size_limit(MAX_RECORD_BYTES)
    try:
        # Spreadsheets write a byte order mark.
        columns = next(csv.reader([header.removeprefix("\ufeff")], **dialect), [])
        if not columns:
            raise UserError(f"{path} is empty: expected a header with the names of columns")
        columns = [name.strip() for name in columns]
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
    columns, where = next(rows), f"{path}:{lines.number}"
    others = [char for char in _SEPARATORS if char in columns[0] and char != dialect["delimiter"]]
    if len(columns) == 1 and others:
        raise UserError(
            f"{where}: got one column, {columns[0]!r}, whose separator seems to be {others[0]!r}; "
            "expected commas or semicolons in .csv and tabs in .tsv; convert or rename the file"
        )
    if repeated := [name for name in columns if columns.count(name) > 1]:
        raise UserError(f"{where}: column {repeated[0]!r} occurs twice; rename or remove one")
    cells, locations = [], []
    for row in rows:
        cells.append(row)
        locations.append(f"{path}:{lines.number}")
    values = zip(*cells, strict=True) if cells else ((),) * len(columns)
    named = dict(zip(columns, map(list, values), strict=True))
    return Table(path, named, locations, has_types=False)


class TableLines:
    """An iterator over the lines of a file as text, which counts them and replaced bytes."""

    def __init__(self, path: str, errors: str):
        self._path, self._errors = path, errors
        self._lines = read_records(path)
        self._replaced, self.number = 0, 0

    def __iter__(self) -> "TableLines":
        return self

    def __next__(self) -> str:
        offset, line = next(self._lines)
        self.number += 1
        text, replaced = decode_bytes(self._path, offset, line, self._errors)
        self._replaced += replaced
        return text

    def take_replaced(self) -> int:
        """Return the number of replaced byte sequences since the last call."""
        replaced, self._replaced = self._replaced, 0
        return replaced


def check_column(path: str, schema: Any, field: str) -> None:
    """Check that a column exists and has strings, or bytes, which are read as UTF-8.

    Args:
      path: The file, for the error message.
      schema: The `pyarrow.Schema` of the file.
      field: Name of the column.

    Raises:
      UserError: There is no such column of strings; the message lists those that exist.
    """
    strings = [column.name for column in schema if _is_string(path, column.type)]
    if field not in strings:
        raise missing_field(path, "column", field, strings, exists=field in schema.names)


def read_column(path: str, column: Any, errors: str, first_row: int) -> Iterator[Document]:
    """Yield a document for every row of a column, an empty one for a missing value.

    Args:
      path: The file, for error messages.
      column: A `pyarrow.Array` of strings or bytes.
      errors: As in `decode`.
      first_row: Number of rows of the file before this array.
    """
    pa = import_extra(path, "pyarrow", PYARROW_EXTRA)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # As bytes, because pyarrow does not check that strings from a file are UTF-8.
    for row, raw in enumerate(column.cast(pa.large_binary()).to_pylist(), first_row + 1):
        yield decode(f"{path}, row {row:,},", 0, raw or b"", errors)


def to_table(path: str, content: Any) -> Table:
    """Convert a `pyarrow.Table`; classes that `datasets` stores as integers get their names.

    Bytes are texts in UTF-8; a column where some are not, such as images, keeps its bytes.
    """
    names = _class_names(content.schema.metadata or {})
    columns = {name: content.column(name).to_pylist() for name in content.schema.names}
    for field in content.schema:
        if "binary" in str(field.type):
            with contextlib.suppress(UnicodeDecodeError):
                columns[field.name] = [_decode(value) for value in columns[field.name]]
    for name, classes in names.items():
        if name in columns:
            columns[name] = [_with_names(value, classes) for value in columns[name]]
    return Table(path, columns, [f"{path}, row {row:,}" for row in range(1, 1 + len(content))])


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(each) for each in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _class_names(metadata: Any) -> dict[str, list[str]]:
    """Return the class names of each column of type `ClassLabel`, or of sequences of it."""
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    found = {}
    for name, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
            found[name] = inner["names"]
    return found


def _with_names(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_with_names(each, names) for each in value]
    # datasets writes -1 for the hidden labels of a test split.
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def _is_string(path: str, kind: Any) -> bool:
    types = import_extra(path, "pyarrow", PYARROW_EXTRA).types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    # Some programs write texts as bytes without a mark.
    return any(
        is_kind(kind)
        for is_kind in (
            *(types.is_string, types.is_large_string, types.is_string_view),
            *(types.is_binary, types.is_large_binary, types.is_binary_view),
        )
    )
