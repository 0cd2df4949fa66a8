"""Write the features of any number of texts as `.npz`, `.npy` or `.safetensors`, atomically.

Arrays grow in files of a temporary folder, and are assembled when the number of rows is known:
memory use does not depend on it. A writer that was interrupted is continued.
"""

import json
import pathlib
import shutil
import zipfile
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float32

from bertjax.inference.growing_arrays import GrowingArrays

_SAFETENSORS_DTYPES = {"float32": "F32", "int32": "I32", "int64": "I64"}
_ALIGNMENT = 8
"""Alignment of the data of a safetensors file, in bytes: readers map it into memory."""


class ArrayWriter(GrowingArrays):
    """Collects the features of chunks of texts; a subclass assembles them to a file.

    Args:
      path: The file to create.
      layers: Numbers of the layers of the features.
      folder: Folder of the arrays; see `GrowingArrays`.
    """

    def __init__(self, path: pathlib.Path, layers: list[int], folder: pathlib.Path):
        super().__init__(folder)
        self._path, self._layers = path, np.array(layers)

    def __exit__(self, kind: type | None, *error: object) -> None:
        try:
            if kind is None and self.headers:
                self._finish()
        finally:
            super().__exit__(kind, *error)

    def add(self, chunk: Any, features: Float32[np.ndarray, "rows K D"], *, tokens: bool) -> None:
        """Appends the features of a chunk.

        Args:
          chunk: The texts.
          features: A row for each token or for each text.
          tokens: Whether rows are tokens.
        """
        self.append("features", features)
        if tokens:
            self.append("ids", chunk.ids)
            self.append("spans", chunk.spans)
            self.append("begins", chunk.starts + self.headers["ids"][0][0] - len(chunk.ids))

    def _finish(self) -> None:
        if "begins" in self.headers:
            dtype = self.headers["begins"][1]
            self.append("begins", np.array([self.headers["ids"][0][0]], dtype))
        self.append("layers", self._layers)
        self.flush()
        whole = self.folder / "whole"
        self._assemble(whole)
        # A rename, unless the path is one of the temporary folder and the arrays are in the cache.
        shutil.move(whole, self._path)

    def _copy(self, name: str, target: Any) -> None:
        with (self.folder / name).open("rb") as rows:
            shutil.copyfileobj(rows, target)

    def _assemble(self, whole: pathlib.Path) -> None:
        """Writes the file from the arrays, of which all rows are known."""
        raise NotImplementedError


def _write_npy_header(target: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    header = {"fortran_order": False, "descr": np.lib.format.dtype_to_descr(dtype), "shape": shape}
    np.lib.format.write_array_header_2_0(target, header)


class NpzWriter(ArrayWriter):
    """Writes an `.npz`: all arrays, by name."""

    def _assemble(self, whole: pathlib.Path) -> None:
        with zipfile.ZipFile(whole, "w", allowZip64=True) as archive:
            for name, (shape, dtype) in self.headers.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    _write_npy_header(entry, shape, dtype)
                    self._copy(name, entry)


class NpyWriter(ArrayWriter):
    """Writes an `.npy`: the features of one layer, [rows D], which numpy can map into memory."""

    def _assemble(self, whole: pathlib.Path) -> None:
        (count, _, width), dtype = self.headers["features"]
        with whole.open("wb") as file:
            _write_npy_header(file, (count, width), dtype)
            self._copy("features", file)


class SafetensorsWriter(ArrayWriter):
    """Writes a `.safetensors`: all arrays, by name."""

    def _assemble(self, whole: pathlib.Path) -> None:
        # The widest types first, so that every array is aligned.
        names = sorted(self.headers, key=lambda name: -self.headers[name][1].itemsize)
        with whole.open("wb") as file:
            self._write_header(file, names)
            for name in names:
                self._copy(name, file)

    def _write_header(self, file: BinaryIO, names: list[str]) -> None:
        """Writes the length of the JSON header, and the header with the place of each array."""
        entries, end = {}, 0
        for name in names:
            shape, dtype = self.headers[name]
            begin, end = end, end + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            kind = _SAFETENSORS_DTYPES[dtype.name]
            entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % _ALIGNMENT)
        file.write(len(header).to_bytes(8, "little") + header)


WRITERS = {".npz": NpzWriter, ".npy": NpyWriter, ".safetensors": SafetensorsWriter}
"""Writers by the ending of the file name."""
