"""Arrow IPC files and streams: a column of strings, read in record batches.

`datasets.Dataset.save_to_disk` writes a folder of such streams, which can be passed as one input.
"""

import os
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from bertjax.corpus import tables
from bertjax.corpus.documents import Document
from bertjax.corpus.format import ReadOptions, Table, TextFormat, import_extra
from bertjax.errors import UserError
from bertjax.io import file_kinds
from bertjax.io.files import get_field, load_json
from bertjax.io.inputs import open_seekable, reading_errors

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_LAYOUT = "the layout that save_to_disk of datasets writes"


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from a column of every row."""
    ipc = import_extra(path, "pyarrow", tables.PYARROW_EXTRA).ipc
    rows = 0
    with open_seekable(path) as stream, reading_errors(path, lambda: f"{rows:,} rows"):
        schema, batches = _open(path, ipc, stream)
        tables.check_column(path, schema, options.text_field)
        column = schema.get_field_index(options.text_field)
        for batch in batches:
            yield from tables.read_column(path, batch.column(column), options.errors, rows)
            rows += batch.num_rows


def read_all(path: str) -> Table:
    """Read all columns."""
    pa = import_extra(path, "pyarrow", tables.PYARROW_EXTRA)
    ipc = import_extra(path, "pyarrow.ipc", tables.PYARROW_EXTRA)
    with open_seekable(path) as stream, reading_errors(path, lambda: "its columns"):
        schema, batches = _open(path, ipc, stream)
        return tables.to_table(path, pa.Table.from_batches(batches, schema))


def _open(path: str, ipc: Any, stream: BinaryIO) -> tuple[Any, Iterator[Any]]:
    """Return the schema of a file, and an iterator over its record batches."""
    magic = stream.read(6)
    if not magic:
        raise UserError(f"{path} is empty: expected an Arrow file; remove it from the inputs")
    is_file = magic == b"ARROW1"
    if not is_file:
        # pyarrow reads a stream that was cut off between two batches as if it were complete.
        stream.seek(max(stream.seek(0, os.SEEK_END) - len(_END_OF_STREAM), 0))
        if stream.read() != _END_OF_STREAM:
            raise EOFError("the stream has no end mark")
    stream.seek(0)
    if not is_file:
        reader = ipc.open_stream(stream)
        return reader.schema, iter(reader)
    reader = ipc.open_file(stream)
    return reader.schema, map(reader.get_batch, range(reader.num_record_batches))


def list_files(folder: str) -> list[str] | None:
    """Return the files of a folder that `datasets.Dataset.save_to_disk` wrote.

    Raises:
      UserError: The folder has several splits, or rows that are only selected by indices, or one of
        its JSON files is damaged.
    """
    splits, state = (os.path.join(folder, name) for name in ("dataset_dict.json", "state.json"))
    if os.path.isfile(splits):
        content = load_json(pathlib.Path(splits), _LAYOUT)
        names = list(map(str, get_field(splits, content, "splits", list, _LAYOUT)))
        if not names:
            raise UserError(f"{splits} has no splits, expected one or more; save the dataset again")
        raise UserError(
            f"{folder} has the splits {', '.join(names)}, expected one: give "
            f"{os.path.join(folder, names[0])}"
        )
    if not os.path.isfile(state):
        return None
    content = load_json(pathlib.Path(state), _LAYOUT)
    if not isinstance(content, dict) or "_data_files" not in content:
        return None  # other programs write files of this name too
    if content.get("_indices_data_files"):
        raise UserError(
            f"{folder}: its rows are selected by a separate file of indices; save the dataset "
            "again after flatten_indices()"
        )
    files = get_field(state, content, "_data_files", list, _LAYOUT)
    where = f"{state}, _data_files"
    names = [get_field(where, entry, "filename", str, _LAYOUT) for entry in files]
    return [os.path.join(folder, name) for name in names]


FORMAT = TextFormat(
    read,
    kinds=(file_kinds.ARROW_STREAM, file_kinds.FEATHER),
    has_fields=True,
    list_files=list_files,
    read_table=read_all,
)
