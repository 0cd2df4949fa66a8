"""Documents from a column of Arrow data, and all columns: the common part of Parquet and Arrow."""

import json
from collections.abc import Iterator
from typing import Any

from bertjax.corpus.documents import Document, decode
from bertjax.corpus.format import Table, import_extra, missing_field

EXTRA = "parquet"
"""The extra of bertjax that installs pyarrow."""


def check_column(path: str, schema: Any, field: str) -> None:
    """Check that a column exists and has strings.

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
      column: A `pyarrow.Array` of strings.
      errors: As in `decode`.
      first_row: Number of rows of the file before this array.
    """
    pa = import_extra(path, "pyarrow", EXTRA)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # As bytes, because pyarrow does not check that strings from a file are UTF-8.
    for row, raw in enumerate(column.cast(pa.large_binary()).to_pylist(), first_row + 1):
        yield decode(f"{path}, row {row:,},", 0, raw or b"", errors)


def to_table(path: str, content: Any) -> Table:
    """Convert a `pyarrow.Table`; classes that `datasets` stores as integers get their names."""
    names = _class_names(content.schema.metadata or {})
    columns = {name: content.column(name).to_pylist() for name in content.schema.names}
    for name, classes in names.items():
        if name in columns:
            columns[name] = [_with_names(value, classes) for value in columns[name]]
    return Table(path, columns, [f"{path}, row {row:,}" for row in range(1, 1 + len(content))])


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
    types = import_extra(path, "pyarrow", EXTRA).types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
