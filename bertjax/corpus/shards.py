"""Write the shards of a corpus atomically, with the state from which `prepare` resumes.

Until a corpus is complete, its folder has a folder `unfinished` with the finished shards, their
rows of the index, their token counts, the keys of their documents for filters of duplicates, and
`progress.json` with their end position in the input.
"""

import contextlib
import dataclasses
import errno
import io
import os
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from bertjax.corpus.encoding import EncodedDocuments
from bertjax.corpus.reader import INDEX_DTYPE, hash_file
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.io.files import fsync, write_atomic

# One record per chunk makes random reads fast. Compression would halve their speed, and make the
# bytes of a corpus depend on the version of the compressor.
_WRITER_OPTIONS = "group_size:1,uncompressed"

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Position(NamedTuple):
    """A position between two documents of the input.

    Attributes:
      source: Index of the source.
      document: Number of documents of the source before the position.
      digest: Chained hash of these documents, to detect a changed source.
    """

    source: int
    document: int
    digest: str


_NO_KEYS = np.zeros(0, np.uint64)
START = Position(0, 0, "")
SHARD_SUFFIX = ".array_record"
"""File name suffix of shards."""


@dataclasses.dataclass
class SplitState:
    """The finished shards of a split, their counts, and their end position in the input."""

    position: Position
    shards: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    totals: Counter[str] = dataclasses.field(default_factory=Counter)
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        return {
            "position": list(self.position),
            "shards": self.shards,
            "totals": dict(self.totals),
            "dropped": dict(self.dropped),
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> "SplitState":
        return cls(
            Position(*entry["position"]),
            entry["shards"],
            Counter(entry["totals"]),
            Counter(entry["dropped"]),
        )


class SplitWriter:
    """Write the shards of one split in order.

    Args:
      folder: The folder of finished shards.
      split: The split's name.
      state: The finished shards; updated after every shard.
      shard_size: Size in MiB from which a shard counts as full.
      tokenizer: Its vocabulary size is the length of the token counts.
      part: Name of the temporary file to which a shard is written.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        split: str,
        state: SplitState,
        shard_size: float,
        tokenizer: Tokenizer,
        part: str = "",
    ):
        self.state = state
        self._part = folder / (part or f"{split}.part")
        self._folder, self._split = folder, split
        self._full_bytes, self._vocab_size = shard_size * 2**20, tokenizer.vocab_size
        self._start_shard()

    def _start_shard(self) -> None:
        self._writer: ArrayRecordWriter | None = None
        self._index: list[np.ndarray] = []
        self._counts = np.zeros(self._vocab_size, np.int64)
        self._keys: list[np.ndarray] = []
        self._bytes = 0
        self._totals: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def add(
        self,
        encoded: EncodedDocuments,
        *,
        dropped: Counter[str],
        replaced: int,
        keys: Iterable[np.ndarray] = (),
    ) -> None:
        """Append the documents of a block.

        Args:
          encoded: The encoded documents.
          dropped: Number of dropped documents of the block by reason.
          replaced: Number of invalid byte sequences that were replaced.
          keys: Arrays of the keys of the documents; see `filters.DocumentFilter`.
        """
        self._keys += keys
        if encoded.records and self._writer is None:
            self._writer = ArrayRecordWriter(str(self._part), _WRITER_OPTIONS)
        for record in encoded.records:
            self._writer.write(record)
        self._index.append(encoded.index)
        self._counts[encoded.token_ids] += encoded.token_counts
        self._bytes += sum(map(len, encoded.records))
        self._dropped += dropped
        self._totals.update(
            documents=encoded.documents,
            records=len(encoded.records),
            sentences=int(encoded.index["sentences"].sum()),
            tokens=int(encoded.index["tokens"].sum()),
            characters=encoded.characters,
            replaced=replaced,
        )

    @property
    def is_full(self) -> bool:
        """Whether the current shard has reached its size."""
        return self._bytes >= self._full_bytes

    def end_shard(self, position: Position) -> None:
        """Finish the current shard atomically and set the position of `state`."""
        if self._writer is not None:
            name = shard_name(self._split, len(self.state.shards))
            self._writer.close()
            fsync(self._part)
            index = np.concatenate(self._index)
            write_array(self._folder / f"{name}.index.npy", index)
            write_array(self._folder / f"{name}.counts.npy", self._counts)
            write_array(self._folder / f"{name}.keys.npy", np.concatenate([_NO_KEYS, *self._keys]))
            shard = {
                "records": len(index),
                "bytes": self._part.stat().st_size,
                "sha256": hash_file(self._part),
            }
            os.replace(self._part, self._folder / name)
            fsync(self._folder)
            self.state.shards.append(shard)
        self.state.position = position
        self.state.totals += self._totals
        self.state.dropped += self._dropped
        self._start_shard()


def shard_name(split: str, number: int) -> str:
    """Return the name of a finished shard while the number of shards is unknown."""
    return f"{split}-{number:05d}{SHARD_SUFFIX}"


def merge_shard_arrays(
    folder: pathlib.Path, split: str, num_shards: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Merge index and token counts of all shards of a split.

    Returns:
      The index (`INDEX_DTYPE`, one row per record) and the counts (int64 [vocab_size]).
    """
    names = [shard_name(split, number) for number in range(num_shards)]
    index = [np.load(folder / f"{name}.index.npy") for name in names]
    counts = np.zeros(vocab_size, np.int64)
    for name in names:
        counts += np.load(folder / f"{name}.counts.npy")
    return np.concatenate([np.zeros(0, INDEX_DTYPE), *index]), counts


def write_array(path: pathlib.Path, array: np.ndarray) -> None:
    """Write a `.npy` file atomically."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_atomic(path, buffer.getvalue())


@contextlib.contextmanager
def disk_errors(folder: str | os.PathLike) -> Iterator[None]:
    """A context manager that converts errors of a full or read-only disk to `UserError`."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        full = getattr(error, "errno", None) in _DISK_FULL
        full = full or any(os.strerror(number) in str(error) for number in _DISK_FULL)
        if full:
            raise UserError(
                f"cannot write {folder}: the disk is full; free some space and run the same "
                "command again, which keeps finished shards"
            ) from error
        if isinstance(error, PermissionError) or "Permission denied" in str(error):
            raise UserError(
                f"cannot write {folder}: permission denied; give another folder"
            ) from error
        raise
