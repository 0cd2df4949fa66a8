"""Documents from a column of Arrow data: the common part of Parquet and Arrow IPC."""

from collections.abc import Iterator
from typing import Any

from bertjax.corpus.documents import Document, decode
from bertjax.corpus.format import import_extra, missing_field

EXTRA = "parquet"
"""The extra of bertjax that installs pyarrow."""


def check_column(path: str, schema: Any, field: str) -> None:
    """Check that a column exists and has strings.

    Args:
      path: The file, for the error message.
      schema: The `pyarrow.Schema` of the file.
      field: Name of the column.

    Raises:
      UserError: It does not; the message lists the columns with strings.
    """
    strings = [column.name for column in schema if _is_string(path, column.type)]
    if field not in strings:
        raise missing_field(path, "column", field, strings, exists=field in schema.names)


def read_column(path: str, column: Any, errors: str, first_row: int) -> Iterator[Document]:
    """Yield a document for every row of a column, an empty one for a missing value.

    Args:
      path: The file, for error messages.
      column: A `pyarrow.Array` of strings.
      errors: As of `decode`.
      first_row: Number of rows of the file before this array.
    """
    pa = import_extra(path, "pyarrow", EXTRA)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # As bytes, because pyarrow does not check that strings from a file are UTF-8.
    for row, raw in enumerate(column.cast(pa.large_binary()).to_pylist(), first_row + 1):
        yield decode(f"{path}, row {row:,},", 0, raw or b"", errors)


def _is_string(path: str, kind: Any) -> bool:
    types = import_extra(path, "pyarrow", EXTRA).types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
