"""Parquet files: a column of strings, read in batches of rows."""

from collections.abc import Iterator

from bertjax.corpus import tables
from bertjax.corpus.documents import Document
from bertjax.corpus.format import ReadOptions, Table, TextFormat, import_extra
from bertjax.errors import UserError
from bertjax.io import file_kinds
from bertjax.io.inputs import open_seekable, reading_errors

_BATCH_ROWS = 256
_BUFFER_BYTES = 1 << 20


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from a column of every row; only this column is read from the file."""
    parquet = import_extra(path, "pyarrow.parquet", tables.PYARROW_EXTRA)
    rows = 0
    with open_seekable(path) as stream, reading_errors(path, lambda: f"{rows:,} rows"):
        if not stream.peek(1):
            raise UserError(f"{path} is empty: expected a Parquet file; remove it from the inputs")
        # Without a buffer size, a whole column of a row group would be in memory.
        file = parquet.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        tables.check_column(path, file.schema_arrow, options.text_field)
        batches = file.iter_batches(_BATCH_ROWS, columns=[options.text_field], use_threads=False)
        for batch in batches:
            yield from tables.read_column(path, batch.column(0), options.errors, rows)
            rows += batch.num_rows


def read_all(path: str) -> Table:
    """Read all columns."""
    parquet = import_extra(path, "pyarrow.parquet", tables.PYARROW_EXTRA)
    with open_seekable(path) as stream, reading_errors(path, lambda: "its columns"):
        content = parquet.ParquetFile(stream).read(use_threads=False)
        return tables.to_table(path, content)


FORMAT = TextFormat(read, kinds=(file_kinds.PARQUET,), has_fields=True, read_table=read_all)
