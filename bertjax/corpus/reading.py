"""Read the inputs of a corpus in blocks, starting at any position, so that `prepare` can resume.

The reading process sees every document once, in the input's order, and gives it to a split by a
digest of its text. The digests of a source's documents, chained, tell whether what an earlier call
read of it is still the same.
"""

import dataclasses
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.corpus.shards import START, Position
from bertjax.corpus.sources import Source
from bertjax.corpus.text import Document
from bertjax.errors import UserError

BLOCK_CHARACTERS = 1 << 18
"""What goes to a worker at once: enough to hide the way there, little enough to share evenly."""

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


_digest = functools.partial(hashlib.blake2b, digest_size=16)


@dataclasses.dataclass
class Block:
    """Documents of one split, and what is known of them before they are packed.

    Attributes:
      split: The split that they belong to.
      texts: Those that have text.
      characters: How many characters those have.
      dropped: How many were dropped, by reason.
      replaced: How much in them was not UTF-8.
      position: Where in the input the block ends.
      is_last: Whether no other block of the split follows.
      input_bytes: How much of the stream is behind then, as far as is known.
    """

    split: str
    texts: list[str] = dataclasses.field(default_factory=list)
    characters: int = 0
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    replaced: int = 0
    position: Position = START
    is_last: bool = False
    input_bytes: int = 0

    def add(self, document: Document) -> None:
        self.replaced += document.replaced
        if document.text:
            self.texts.append(document.text)
            self.characters += len(document.text)
        else:
            self.dropped["empty"] += 1


@dataclasses.dataclass(frozen=True)
class Stream:
    """Sources that are read one after another, and the splits that their documents go to.

    Attributes:
      sources: The whole input.
      splits: One split, or `train` and `validation`, and then
      validation_fraction: how much goes to `validation`.
    """

    sources: Sequence[Source]
    splits: tuple[str, ...]
    validation_fraction: float = 0.0

    def choose(self, content: bytes) -> str:
        """The split of a document: a fixed choice for its text, whatever stands around it."""
        if len(self.splits) == 1:
            return self.splits[0]
        drawn = int.from_bytes(_digest(content).digest()[:8], "big") / 2**64
        return "validation" if drawn < self.validation_fraction else "train"


def blocks(
    stream: Stream,
    positions: Mapping[str, Position],
    read: Callable[[Source], Iterator[Document]],
) -> Iterator[Block]:
    """Yields the blocks of every split, each from its own position on, and an ending one for each.

    Args:
      stream: The input.
      positions: Where each split continues; documents of a split before its position are passed
        over.
      read: The documents of a source.

    Raises:
      UserError: a source is not what it was when the positions were taken.
    """
    sources = stream.sources
    building = {split: Block(split) for split in positions}
    first = min(position.source for position in positions.values())
    bytes_behind = sum(source.bytes for source in sources[:first])
    for number in range(first, len(sources)):
        source, size = sources[number], 0
        known = {p.document: p.digest for p in positions.values() if p.source == number}
        for count, document, content, chain in _digested(source, read, known):
            size += len(content)
            split = stream.choose(content)
            if (number, count) <= positions[split][:2]:
                continue
            block = building[split]
            block.add(document)
            if block.characters >= BLOCK_CHARACTERS:
                block.position = Position(number, count, chain.hexdigest())
                block.input_bytes = bytes_behind + _bytes_read(source, size)
                building[split] = Block(split)
                yield block
        bytes_behind += source.bytes
    for block in building.values():
        block.position, block.is_last = Position(len(sources), 0, ""), True
        block.input_bytes = bytes_behind
        yield block


def _digested(
    source: Source, read: Callable[[Source], Iterator[Document]], known: dict[int, str]
) -> Iterator[tuple[int, Document, bytes, Any]]:
    """Yields (number from 1, document, its bytes, digest of all so far), checking known digests."""
    chain, count = _digest(), 0
    for count, document in enumerate(read(source), start=1):
        content = document.text.encode()
        chain.update(len(content).to_bytes(8, "big") + content)
        if count in known and known[count] != chain.hexdigest():
            raise UserError(_changed(source))
        yield count, document, content, chain
    if any(document > count for document in known):
        raise UserError(_changed(source))


def _bytes_read(source: Source, size: int) -> int:
    """How much of a file has been read; unknown before its end where it is compressed."""
    return 0 if source.name.endswith(_COMPRESSED) else min(size, source.bytes)


def _changed(source: Source) -> str:
    return (
        f"{source.name} has changed since this corpus was begun; "
        "restore it, or delete the corpus folder and start again"
    )
