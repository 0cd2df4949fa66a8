"""Write shards atomically, with the state from which writing resumes after the last one.

While a corpus is made, its folder has a folder `unfinished` with the finished shards, their rows of
the index, their token counts, and `progress.json`, which says up to where in the input they reach.
"""

import contextlib
import dataclasses
import errno
import io
import os
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from bertjax.corpus.encoding import Packed
from bertjax.corpus.reader import INDEX_DTYPE, hash_file
from bertjax.errors import UserError
from bertjax.io.files import fsync, write_atomic

# One record a chunk makes random reads fast; compression would halve their speed again, and tie
# the bytes of a corpus to one version of a compressor.
_WRITER_OPTIONS = "group_size:1,uncompressed"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Position(NamedTuple):
    """A place between two documents of the input.

    Attributes:
      source: The number of the source.
      document: How many of its documents come before.
      digest: Of those documents, so that a changed source is noticed.
    """

    source: int
    document: int
    digest: str


START = Position(0, 0, "")
SHARD = ".array_record"
"""How the name of a shard ends."""


@dataclasses.dataclass
class SplitState:
    """What of a split is on disk: its finished shards and where in the input they end."""

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


class HasVocabulary(Protocol):
    """All that writing needs to know of a tokenizer."""

    vocab_size: int


class SplitWriter:
    """Writes one split, shard after shard.

    Args:
      folder: Where unfinished shards lie.
      split: The split's name.
      state: What is there already; kept up to date, so that it can be saved.
      shard_size: What makes a shard full.
      tokenizer: Tells how many token ids there are to count.
      part: Name of the file that a shard is written to until it is whole.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        split: str,
        state: SplitState,
        shard_size: float,
        tokenizer: HasVocabulary,
        part: str = "",
    ):
        self.state = state
        self._part = folder / (part or f"{split}.part")
        self._folder, self._split = folder, split
        self._full_bytes, self._vocab_size = shard_size * 2**20, tokenizer.vocab_size
        self._begin()

    def _begin(self) -> None:
        self._writer: ArrayRecordWriter | None = None
        self._index: list[np.ndarray] = []
        self._counts = np.zeros(self._vocab_size, np.int64)
        self._bytes = 0
        self._totals: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def add(self, packed: Packed, *, dropped: Counter[str], replaced: int) -> None:
        """Appends a block.

        Args:
          packed: Its documents.
          dropped: How many were dropped before they were packed, by reason.
          replaced: How much in them was not UTF-8.
        """
        if packed.records and self._writer is None:
            self._writer = ArrayRecordWriter(str(self._part), _WRITER_OPTIONS)
        for record in packed.records:
            self._writer.write(record)
        self._index.append(packed.index)
        self._counts[packed.token_ids] += packed.token_counts
        self._bytes += sum(map(len, packed.records))
        self._dropped += dropped
        self._totals.update(
            documents=packed.documents,
            records=len(packed.records),
            sentences=int(packed.index["sentences"].sum()),
            tokens=int(packed.index["tokens"].sum()),
            characters=packed.characters,
            replaced=replaced,
        )

    @property
    def is_full(self) -> bool:
        """Whether the shard has reached its size."""
        return self._bytes >= self._full_bytes

    def end_shard(self, position: Position) -> None:
        """Brings what was added to disk, whole, and moves `state` on to the position."""
        if self._writer is not None:
            name = shard_name(self._split, len(self.state.shards))
            self._writer.close()
            fsync(self._part)
            index = np.concatenate(self._index)
            write_array(self._folder / f"{name}.index.npy", index)
            write_array(self._folder / f"{name}.counts.npy", self._counts)
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
        self._begin()


def shard_name(split: str, number: int) -> str:
    """What a finished shard is called until it is known how many there are."""
    return f"{split}-{number:05d}{SHARD}"


def shard_arrays(folder: pathlib.Path, split: str, num_shards: int, vocab_size: int):
    """Returns a split's index and its token counts, put together from all its shards."""
    names = [shard_name(split, number) for number in range(num_shards)]
    index = [np.load(folder / f"{name}.index.npy") for name in names]
    counts = np.zeros(vocab_size, np.int64)
    for name in names:
        counts += np.load(folder / f"{name}.counts.npy")
    return np.concatenate([np.zeros(0, INDEX_DTYPE), *index]), counts


def write_array(path: pathlib.Path, array: np.ndarray) -> None:
    """Writes a `.npy` file whole or not at all."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_atomic(path, buffer.getvalue())


@contextlib.contextmanager
def disk_errors(folder: str | os.PathLike) -> Iterator[None]:
    """Turns a full disk, and one that cannot be written, into the line that the user reads."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        full = getattr(error, "errno", None) in _FULL
        full = full or any(os.strerror(number) in str(error) for number in _FULL)
        if full:
            raise UserError(
                f"no space left for {folder}; free some and run the same command again: "
                "finished shards are kept"
            ) from error
        if isinstance(error, PermissionError) or "Permission denied" in str(error):
            raise UserError(f"{folder} cannot be written: permission denied") from error
        raise
