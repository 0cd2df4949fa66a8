"""Arrays of texts that grow in files, which a command continues after an interruption.

GrowingArrays    files whose rows are appended; the rows after the last `save` are dropped
ResumableTexts   texts, and which of them are done: resuming checks that these are the same ones
"""

import collections
import hashlib
import itertools
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from bertjax.errors import UserError
from bertjax.io.files import read_json, write_json

_STATE = "state.json"


class GrowingArrays:
    """Appends rows to arrays, each in a file of a folder; a context manager that closes the files.

    Args:
      folder: The folder, such as one of `io.unfinished.parts_folder`. Arrays that an interrupted
        command has left there are continued after its last call of `save`.

    Attributes:
      folder: The folder.
      files: The open files, by the name of the array.
      headers: (shape, dtype) of the rows so far, by the name of the array.
      progress: The progress at the last call of `save` when the folder was opened; None if there
        was none.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.files: dict[str, Any] = {}
        self.headers: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self.progress: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(exist_ok=True)
        if (self.folder / _STATE).exists():
            state = read_json(self.folder / _STATE)
            self.progress = state["progress"]
            for name, (shape, dtype) in state["arrays"].items():
                self._continue(name, tuple(shape), np.dtype(dtype))
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        for file in self.files.values():
            file.close()

    def append(self, name: str, rows: np.ndarray) -> None:
        """Appends rows to an array; the first ones determine its type and the shape of a row."""
        if name not in self.files:
            self.files[name] = (self.folder / name).open("wb")
            self.headers[name] = (0, *rows.shape[1:]), rows.dtype
        (count, *shape), dtype = self.headers[name]
        self.headers[name] = (count + len(rows), *shape), dtype
        self.files[name].write(np.ascontiguousarray(rows).data)

    def save(self, progress: Mapping[str, Any]) -> None:
        """Records that the arrays have all rows up to here.

        Args:
          progress: Values for JSON, from which the caller continues.
        """
        self.flush()
        arrays = {name: (shape, dtype.str) for name, (shape, dtype) in self.headers.items()}
        write_json(self.folder / _STATE, {"progress": progress, "arrays": arrays})

    def flush(self) -> None:
        """Writes all rows to the files."""
        for file in self.files.values():
            file.flush()

    def read(self, name: str) -> np.ndarray:
        """Returns an array with the rows so far, mapped into memory; it must have one."""
        self.flush()
        shape, dtype = self.headers[name]
        return np.memmap(self.folder / name, dtype, "r", shape=shape)

    def discard(self) -> None:
        """Removes the files."""
        for name in (*self.files, _STATE):
            (self.folder / name).unlink(missing_ok=True)

    def _continue(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Opens an array for appending, without the rows that were written after `save`."""
        path = self.folder / name
        size = math.prod(shape) * dtype.itemsize
        if not path.is_file() or path.stat().st_size < size:
            raise UserError(f"{path} is damaged: remove {self.folder} to start anew")
        self.headers[name] = shape, dtype
        self.files[name] = path.open("r+b")
        self.files[name].truncate(size)
        self.files[name].seek(size)


class ResumableTexts:
    """Iterator over texts, of which those that are done are counted and hashed.

    Args:
      texts: The texts.
      source: Their name in errors.

    Attributes:
      num_done: Number of texts that are done.
      num_bytes: Their bytes, with a newline after each.
      num_empty: Number of texts that were read and are empty, or white space.
    """

    def __init__(self, texts: Iterable[str], source: str):
        self._texts, self._source = iter(texts), source
        self._pending: collections.deque[bytes] = collections.deque()
        self._digest = hashlib.sha256()
        self.num_done = self.num_bytes = self.num_empty = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        text = next(self._texts)
        self.num_empty += not text.strip()
        self._pending.append(text.encode() + b"\n")
        return text

    def done(self, count: int) -> None:
        """Marks `count` more texts as done, in the order in which they were read."""
        self.num_done += count
        for _ in range(count):
            line = self._pending.popleft()
            self._digest.update(line)
            self.num_bytes += len(line)

    def progress(self) -> dict[str, Any]:
        """The number of texts that are done, and their SHA-256."""
        return {"texts": self.num_done, "sha256": self._digest.hexdigest()}

    def resume(self, progress: Mapping[str, Any], folder: pathlib.Path) -> None:
        """Reads the texts that were done before.

        Args:
          progress: A former value of `progress`; other entries are ignored.
          folder: Folder of what was computed from these texts.

        Raises:
          UserError: the texts are others.
        """
        for _ in itertools.islice(self, progress["texts"]):
            self.done(1)
        if self.progress()["sha256"] != progress["sha256"]:
            raise UserError(
                f"{self._source}: the first {progress['texts']:,} texts differ from those whose "
                f"results are in {folder}: give the former ones to resume, or remove this folder "
                "to start anew"
            )
