"""Table of the sentences of a batch of examples: read at once, looked up by token position."""

from typing import Protocol

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.layout import Layout, TextLocations, offsets, ranges
from bertjax.errors import UserError

_ROW_DISTANCE = 1 << 40
"""Distance between the positions of consecutive rows, larger than any example."""


class RecordReader(Protocol):
    """The part of the corpus interface that the table uses."""

    dtype: np.dtype

    def read(self, records: Int[np.ndarray, " n"]) -> list[bytes]: ...


class SentenceTable:
    """The sentences of the records of each example; one row per example.

    Positions in the table differ from those in the corpus: the rows are in order and far apart, so
    that a position identifies row and sentence. `locate` converts positions of the corpus.

    Attributes:
      begin: Position of the first token of each sentence.
      end: Position after the last token of each sentence.
      row_begin: Offsets of the rows in `begin` and `end`.
    """

    begin: Int[np.ndarray, " sentences"]
    end: Int[np.ndarray, " sentences"]
    row_begin: Int[np.ndarray, " rows_and_1"]

    def __init__(
        self,
        corpus: RecordReader,
        layout: Layout,
        locations: TextLocations,
        max_length: int,
        piece: int,
    ):
        """Read the records of `locations`.

        Args:
          corpus: The corpus.
          layout: The layout of the corpus.
          locations: The locations to read, one per row.
          max_length: Longer sentences are split; 0 to split none. In tokens.
          piece: Number of tokens of the pieces into which they are split.
        """
        count = locations.end_record - locations.first_record
        self._slot_begin = offsets(count)
        lap, record = np.divmod(ranges(locations.first_record, count), len(layout.tokens))
        begin = layout.record_begin[record] + lap * layout.total
        self._shift = np.arange(len(count)) * _ROW_DISTANCE - begin[self._slot_begin[:-1]]
        self._begin = begin + np.repeat(self._shift, count)
        self._end = self._begin + layout.tokens[record]
        self._values, self._at = _read(corpus, layout, record)
        self._find_sentences(layout, record)
        if max_length:
            self._split_long_sentences(max_length, piece)

    def _find_sentences(self, layout: Layout, record: Int[np.ndarray, " slots"]) -> None:
        count = layout.sentences[record]
        lengths = self._values[ranges(self._at + layout.tokens[record], count)]
        slot_begin = offsets(count)
        self.end = np.cumsum(lengths, dtype=np.int64)
        # One cumulative sum over all slots, which is then shifted to start at each slot's position.
        before = np.append(0, self.end)[slot_begin[:-1]]
        self.end += np.repeat(self._begin - before, count)
        self.begin = self.end - lengths
        self.row_begin = slot_begin[self._slot_begin]

    def _split_long_sentences(self, max_length: int, piece: int) -> None:
        long = np.flatnonzero(self.end - self.begin > max_length)
        if not long.size:
            return
        cuts = (self.end[long] - self.begin[long] - 1) // piece
        number = ranges(np.ones(len(long), np.int64), cuts)
        at = np.repeat(self.begin[long], cuts) + number * piece
        sentence = np.repeat(long, cuts)
        self.begin = np.insert(self.begin, sentence + 1, at)
        self.end = np.insert(self.end, sentence, at)
        self.row_begin = self.row_begin + offsets(cuts)[np.searchsorted(long, self.row_begin)]

    def locate(self, position: Int[np.ndarray, "*windows n"]) -> Int[np.ndarray, "*windows n"]:
        """Convert positions in the corpus, one per row, to positions in the table."""
        return position + self._shift

    def first_sentence_at(self, position: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the first sentence that begins at or after a position."""
        return np.searchsorted(self.begin, position, side="left")

    def end_of_sentences_before(self, position: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the index after the last sentence that ends at or before a position."""
        return np.searchsorted(self.end, position, side="right")

    def copy_tokens(
        self,
        row: Int[np.ndarray, " n"],
        begin: Int[np.ndarray, " n"],
        end: Int[np.ndarray, " n"],
        target: Int[np.ndarray, " size"],
        at: Int[np.ndarray, " n"],
    ) -> None:
        """Copy tokens into a flat array.

        Args:
          row: Rows of the table.
          begin: Position of the first token to copy from each row.
          end: Position after the last token.
          target: The array. Where a position has no token (the gaps between documents), it is not
            changed.
          at: Index in `target` of the first token of each row.
        """
        count = np.diff(self._slot_begin)[row]
        slot = ranges(self._slot_begin[row], count)
        begin, at = np.repeat(begin, count), np.repeat(at, count)
        low = np.maximum(self._begin[slot], begin)
        length = np.maximum(np.minimum(self._end[slot], np.repeat(end, count)) - low, 0)
        source = self._at[slot] + low - self._begin[slot]
        target[ranges(at + low - begin, length)] = self._values[ranges(source, length)]

    def mark_sentences(
        self,
        first: Int[np.ndarray, " n"],
        stop: Int[np.ndarray, " n"],
        begin: Int[np.ndarray, " n"],
        end: Int[np.ndarray, " n"],
        target: Bool[np.ndarray, " size"],
        at: Int[np.ndarray, " n"],
    ) -> None:
        """Mark the starts of sentences in a flat array, for tokens copied by `copy_tokens`.

        Args:
          first: Index of the first sentence of each segment.
          stop: Index after the last sentence.
          begin: Position of the first token of each segment; it is marked in any case.
          end: Position after the last token.
          target: Set to True where a sentence starts.
          at: Index in `target` of the first token of each segment.
        """
        count = stop - first
        starts = self.begin[ranges(first, count)]
        inside = (starts >= np.repeat(begin, count)) & (starts < np.repeat(end, count))
        target[(starts + np.repeat(at - begin, count))[inside]] = True
        target[at] = True


def _read(
    corpus: RecordReader, layout: Layout, record: Int[np.ndarray, " slots"]
) -> tuple[np.ndarray, Int[np.ndarray, " slots"]]:
    """Read each record once; return all values, and the offset of each slot's record in them."""
    unique, slot = np.unique(record, return_inverse=True)
    values = np.frombuffer(b"".join(corpus.read(unique)), corpus.dtype)
    at = offsets(layout.tokens[unique] + layout.sentences[unique])
    if at[-1] != len(values):
        raise UserError(
            f"shards and index are from different corpora: got {len(values)} values in "
            f"{len(unique)} records, expected {at[-1]}; run `bertjax prepare` again"
        )
    return values, at[slot]
