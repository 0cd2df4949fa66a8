"""Read the inputs of a corpus in blocks, from any position, so that `prepare` can resume.

One process reads all documents in order and assigns each to a split by a hash of its text. A
chained hash of a source's documents shows whether the part that an earlier call has read is
unchanged.
"""

import dataclasses
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.corpus.documents import Document
from bertjax.corpus.shards import START, Position
from bertjax.corpus.sources import Source
from bertjax.errors import UserError
from bertjax.io.file_kinds import split_name

BLOCK_CHARACTERS = 1 << 18
"""Size of a block, the unit of work of a worker process: large enough to make the transfer cheap,
small enough to balance the load."""

_digest = functools.partial(hashlib.blake2b, digest_size=16)


@dataclasses.dataclass
class Block:
    """Consecutive documents of one split, not yet encoded.

    Attributes:
      split: The split of the documents.
      texts: The documents that are not empty.
      characters: Number of characters of `texts`.
      dropped: Number of dropped documents by reason.
      replaced: Number of invalid byte sequences that were replaced.
      position: Position in the input at the end of the block.
      is_last: Whether this is the last block of the split.
      input_bytes: Bytes of the stream that have been read, as far as known.
      keys: Keys of each of `texts`, by which duplicates are found, if they are filtered.
    """

    split: str
    texts: list[str] = dataclasses.field(default_factory=list)
    characters: int = 0
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    replaced: int = 0
    position: Position = START
    is_last: bool = False
    input_bytes: int = 0
    keys: list[np.ndarray] = dataclasses.field(default_factory=list)

    def add(self, document: Document) -> None:
        self.replaced += document.replaced
        if document.text:
            self.texts.append(document.text)
            self.characters += len(document.text)
        else:
            self.dropped["empty"] += 1


@dataclasses.dataclass(frozen=True)
class Stream:
    """Sources that are read in order, and the splits to which their documents are assigned.

    Attributes:
      sources: The sources.
      splits: One split, or `train` and `validation`.
      validation_fraction: With two splits, the fraction of documents for `validation`.
    """

    sources: Sequence[Source]
    splits: tuple[str, ...]
    validation_fraction: float = 0.0

    def choose(self, content: bytes) -> str:
        """Choose the split of a document by a hash of its text, independent of its neighbours."""
        if len(self.splits) == 1:
            return self.splits[0]
        uniform = int.from_bytes(_digest(content).digest()[:8], "big") / 2**64
        return "validation" if uniform < self.validation_fraction else "train"


def read_blocks(
    stream: Stream,
    positions: Mapping[str, Position],
    read: Callable[[Source], Iterator[Document]],
) -> Iterator[Block]:
    """Yield the blocks of every split after its position, and a last, possibly empty one for each.

    Args:
      stream: The input.
      positions: The position of each split; documents of a split before it are skipped.
      read: Reads the documents of a source.

    Raises:
      UserError: A source has changed before a position.
    """
    sources = stream.sources
    building = {split: Block(split) for split in positions}
    first = min(position.source for position in positions.values())
    bytes_before = sum(source.bytes for source in sources[:first])
    for number in range(first, len(sources)):
        source, size = sources[number], 0
        known = {p.document: p.digest for p in positions.values() if p.source == number}
        for count, document, content, chain in _read_with_digests(source, read, known):
            size += len(content)
            split = stream.choose(content)
            if (number, count) <= positions[split][:2]:
                continue
            block = building[split]
            block.add(document)
            if block.characters >= BLOCK_CHARACTERS:
                block.position = Position(number, count, chain.hexdigest())
                block.input_bytes = bytes_before + _bytes_read(source, size)
                building[split] = Block(split)
                yield block
        bytes_before += source.bytes
    for block in building.values():
        block.position, block.is_last = Position(len(sources), 0, ""), True
        block.input_bytes = bytes_before
        yield block


def _read_with_digests(
    source: Source, read: Callable[[Source], Iterator[Document]], known: dict[int, str]
) -> Iterator[tuple[int, Document, bytes, Any]]:
    """Yield (number from 1, document, its bytes, chained hash so far); check the known hashes."""
    chain, count = _digest(), 0
    for count, document in enumerate(read(source), start=1):
        content = document.text.encode()
        chain.update(len(content).to_bytes(8, "big") + content)
        if count in known and known[count] != chain.hexdigest():
            raise UserError(_changed_message(source))
        yield count, document, content, chain
    if any(document > count for document in known):
        raise UserError(_changed_message(source))


def _bytes_read(source: Source, size: int) -> int:
    """Bytes of a file that have been read; 0 for a compressed file, where that is unknown."""
    return 0 if split_name(source.name)[1] else min(size, source.bytes)


def _changed_message(source: Source) -> str:
    return (
        f"{source.name} has changed since the interrupted call that is resumed; restore it, or "
        "delete the corpus folder and run the command again"
    )
