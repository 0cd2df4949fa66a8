"""MDS shards, as written by MosaicML's `streaming.MDSWriter`: a column of strings.

A shard is, with little-endian uint32 numbers: the number of samples n, n + 1 offsets of samples
from the start of the file, a JSON object with the names and encodings of columns, and the samples.
A sample is the sizes of its columns of variable size, and the values of all columns. The folder of
a dataset has an `index.json` with the names of shards, and can be passed as one input.
"""

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from bertjax.corpus.documents import Document, decode
from bertjax.corpus.format import ReadOptions, TextFormat, missing_field
from bertjax.errors import UserError
from bertjax.io import file_kinds
from bertjax.io.files import get_field, load_json
from bertjax.io.inputs import open_decompressed, reading_errors

_UINT32 = np.dtype("<u4")
_MAX_SHARD_SAMPLES = 1 << 28
_INDEX = "the layout of the index.json of MDS shards"


class _Column(NamedTuple):
    """A column: its name, its encoding, and the size of a value; None if it varies."""

    name: str
    encoding: str
    size: int | None


def read(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a document from a column of every sample."""
    row = 0
    with (
        reading_errors(path, lambda: f"{row:,} samples"),
        open_decompressed(path) as stream,
    ):
        offsets = _read_offsets(path, stream)
        columns = _read_columns(stream, int(offsets[0]) - _table_bytes(offsets.size - 1))
        index = _find_column(path, columns, options.text_field)
        for row, size in enumerate(np.diff(offsets).tolist(), start=1):
            raw = _value(_read_exactly(stream, size), columns, index)
            yield decode(f"{path}, sample {row:,},", 0, raw, options.errors)
        if stream.read(1):
            raise ValueError("there are bytes after the last sample")


def _read_offsets(path: str, stream: BinaryIO) -> np.ndarray:
    if not stream.peek(1):
        raise UserError(f"{path} is empty: expected an MDS shard; remove it from the inputs")
    (count,) = np.frombuffer(_read_exactly(stream, _UINT32.itemsize), _UINT32).tolist()
    if count > _MAX_SHARD_SAMPLES:
        raise ValueError(f"it is not an MDS shard: its number of samples would be {count:,}")
    offsets = np.frombuffer(_read_exactly(stream, (count + 1) * _UINT32.itemsize), _UINT32)
    offsets = offsets.astype(np.int64)
    if offsets[0] < _table_bytes(count) or np.any(np.diff(offsets) < 0):
        raise ValueError("it is not an MDS shard: the offsets of its samples do not increase")
    return offsets


def _table_bytes(num_samples: int) -> int:
    """Bytes of the number of samples and the table of their offsets."""
    return (num_samples + 2) * _UINT32.itemsize


def _read_columns(stream: BinaryIO, size: int) -> list[_Column]:
    config = json.loads(_read_exactly(stream, size))
    names = ("column_names", "column_encodings", "column_sizes")
    if not (isinstance(config, dict) and config.get("format") == "mds" and config["version"] == 2):
        raise ValueError("it is not an MDS shard of version 2")
    return [_Column(*entry) for entry in zip(*(config[name] for name in names), strict=True)]


def _find_column(path: str, columns: list[_Column], field: str) -> int:
    strings = [column.name for column in columns if column.encoding == "str"]
    if field not in strings:
        exists = any(column.name == field for column in columns)
        raise missing_field(path, "column", field, strings, exists=exists)
    return next(index for index, column in enumerate(columns) if column.name == field)


def _value(sample: bytes, columns: list[_Column], index: int) -> bytes:
    """Return the value of one column of a sample."""
    # The writer treats a size of 0 as variable too.
    num_sizes = sum(not column.size for column in columns)
    variable = iter(np.frombuffer(sample, _UINT32, num_sizes).tolist())
    sizes = [column.size or next(variable) for column in columns]
    start = num_sizes * _UINT32.itemsize + sum(sizes[:index])
    if num_sizes * _UINT32.itemsize + sum(sizes) != len(sample):
        raise ValueError("the sizes of the columns of a sample do not add up to its size")
    return sample[start : start + sizes[index]]


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("the file ends within its header or a sample")
    return content


def list_files(folder: str) -> list[str] | None:
    """Return the shards of a folder with an `index.json`, compressed ones if there are any.

    Raises:
      UserError: The `index.json` is damaged.
    """
    path = os.path.join(folder, "index.json")
    if not os.path.isfile(path):
        return None
    index = load_json(pathlib.Path(path), _INDEX)
    shards = index.get("shards") if isinstance(index, dict) else None
    if not isinstance(shards, list) or not shards or not all(map(_is_shard, shards)):
        return None  # other programs write files of this name too
    return [
        _find_shard(folder, f"{path}, shard {number:,}", shard)
        for number, shard in enumerate(shards, start=1)
    ]


def _is_shard(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("format") == "mds"


def _find_shard(folder: str, where: str, entry: dict[str, Any]) -> str:
    """Return the path of the raw file of a shard, or of its compressed one if only that exists."""
    keys = [key for key in ("raw_data", "zip_data") if entry.get(key)] or ["raw_data"]
    files = [get_field(where, entry, key, dict, _INDEX) for key in keys]
    paths = [
        os.path.join(folder, get_field(where, file, "basename", str, _INDEX)) for file in files
    ]
    return next(filter(os.path.isfile, paths), paths[0])


FORMAT = TextFormat(read, kinds=(file_kinds.MDS,), has_fields=True, list_files=list_files)
