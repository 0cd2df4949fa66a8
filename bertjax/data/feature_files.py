"""Files of features, written as they come and there whole or not at all: `.npz` and `.parquet`.

npz: named arrays. `features` [rows layers width]; of tokens besides `ids` [rows], `spans` [rows 2]
and `begins` [texts + 1], the first row of each text; `layers`, which these are.
parquet: a row for each text or token, with columns `text`, `layer_N`; of tokens besides `token`,
`piece`, `begin`, `end`.
"""

import pathlib
import shutil
import uuid
import zipfile
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from bertjax.data import storage
from bertjax.errors import UserError

FORMATS = (".npz", ".parquet")


def check(path: pathlib.Path) -> None:
    """Refuses early what cannot be written.

    Raises:
      UserError: an unknown format, something is there already, no file can be written there, or a
        package is missing.
    """
    if path.suffix not in FORMATS:
        raise UserError(f"--out {path}: wanted a name that ends in {' or '.join(FORMATS)}")
    if path.exists():
        raise UserError(f"{path} exists: name a new file, or remove it first")
    storage.check_file(path)
    if path.suffix == ".parquet":
        _pyarrow()


class NpzWriter:
    """Arrays that grow in files of their own until all rows are known."""

    def __init__(self, path: pathlib.Path, layers: list[int]):
        self._path, self._layers = path, np.array(layers)
        self._folder = path.with_name(f".{path.name}.unfinished-{uuid.uuid4().hex}")
        self._files: dict[str, Any] = {}
        self._shapes: dict[str, tuple] = {}

    def __enter__(self) -> "NpzWriter":
        self._folder.mkdir()
        return self

    def __exit__(self, kind, *error: object) -> None:
        try:
            for file in self._files.values():
                file.close()
            if kind is None:
                self._assemble()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, chunk: Any, features: Float32[np.ndarray, "rows K D"], *, tokens: bool) -> None:
        """Adds the features of a chunk, of its tokens or of its texts."""
        self._grow("features", features)
        if tokens:
            self._grow("ids", chunk.ids)
            self._grow("spans", chunk.spans)
            self._grow("begins", chunk.starts + self._shapes["ids"][0] - len(chunk.ids))

    def _grow(self, name: str, rows: np.ndarray) -> None:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("wb")
            self._shapes[name] = (0, rows.shape[1:], rows.dtype)
        count, shape, dtype = self._shapes[name]
        self._shapes[name] = (count + len(rows), shape, dtype)
        self._files[name].write(np.ascontiguousarray(rows).data)

    def _assemble(self) -> None:
        whole = self._folder / "whole"
        with zipfile.ZipFile(whole, "w", allowZip64=True) as archive:
            for name, (count, shape, dtype) in self._shapes.items():
                extra = np.array([self._shapes["ids"][0]], dtype) if name == "begins" else None
                header = {"fortran_order": False, "descr": np.lib.format.dtype_to_descr(dtype)}
                header["shape"] = (count + (extra is not None), *shape)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_2_0(entry, header)
                    with (self._folder / name).open("rb") as rows:
                        shutil.copyfileobj(rows, entry)
                    if extra is not None:
                        entry.write(extra.data)
            with archive.open("layers.npy", "w") as entry:
                np.lib.format.write_array(entry, self._layers)
        whole.replace(self._path)


class ParquetWriter:
    """One group of rows for each chunk."""

    def __init__(self, path: pathlib.Path, layers: list[int], tokenizer: Any):
        self._path, self._layers, self._tokenizer = path, layers, tokenizer
        self._part = path.with_name(f".{path.name}.unfinished-{uuid.uuid4().hex}")
        self._writer: Any = None

    def __enter__(self) -> "ParquetWriter":
        return self

    def __exit__(self, kind, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
        if kind is None and self._writer is not None:
            self._part.replace(self._path)
        self._part.unlink(missing_ok=True)

    def add(self, chunk: Any, features: Float32[np.ndarray, "rows K D"], *, tokens: bool) -> None:
        """Adds the features of a chunk, of its tokens or of its texts."""
        pyarrow, parquet = _pyarrow()
        columns = self._of_tokens(chunk) if tokens else {"text": _numbers(chunk)}
        for index, layer in enumerate(self._layers):
            flat = pyarrow.array(np.ascontiguousarray(features[:, index]).reshape(-1))
            width = features.shape[2]
            columns[f"layer_{layer}"] = pyarrow.FixedSizeListArray.from_arrays(flat, width)
        table = pyarrow.table(columns)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._part, table.schema)
        self._writer.write_table(table)

    def _of_tokens(self, chunk: Any) -> dict[str, Any]:
        within = np.arange(len(chunk.ids)) - np.repeat(chunk.starts, chunk.counts)
        return {
            "text": np.repeat(_numbers(chunk), chunk.counts),
            "token": within,
            "piece": self._tokenizer.pieces(chunk.ids.tolist()),
            "begin": chunk.spans[:, 0],
            "end": chunk.spans[:, 1],
        }


def writer(path: pathlib.Path, layers: list[int], tokenizer: Any) -> NpzWriter | ParquetWriter:
    """What writes a file of this name."""
    if path.suffix == ".npz":
        return NpzWriter(path, layers)
    return ParquetWriter(path, layers, tokenizer)


def _numbers(chunk: Any) -> Int[np.ndarray, " n"]:
    return chunk.first + np.arange(len(chunk.counts))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            ".parquet needs pyarrow: pip install 'bertjax[parquet]', or name a file .npz"
        ) from None
    return pyarrow, parquet
