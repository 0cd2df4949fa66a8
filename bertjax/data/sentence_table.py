"""Table of the sentences around some examples: read at once, looked up by position."""

from typing import Protocol

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.layout import Layout, Places, offsets, ranges
from bertjax.errors import UserError

_APART = 1 << 40
"""How far apart the rows of a table lie: farther than any example reads."""


class RecordReader(Protocol):
    """What is asked of a corpus here."""

    dtype: np.dtype

    def read(self, records: Int[np.ndarray, " n"]) -> list[bytes]: ...


class SentenceTable:
    """All sentences of the records that each example needs, a row for each example.

    A table has positions of its own, in which rows lie far apart and in order, so that a sentence
    is found by its position alone. `locate` translates positions of the corpus.

    Attributes:
      begin: The position of each sentence's first token.
      end: The position after its last token.
      row_begin: Where each row's sentences begin in `begin` and `end`; and where the last ends.
    """

    begin: Int[np.ndarray, " sentences"]
    end: Int[np.ndarray, " sentences"]
    row_begin: Int[np.ndarray, " rows_and_1"]

    def __init__(
        self, corpus: RecordReader, layout: Layout, places: Places, max_length: int, piece: int
    ):
        """Reads the records of `places`.

        Args:
          corpus: Where they are read.
          layout: Of this corpus.
          places: What is read for each row.
          max_length: Tokens of the longest sentence that stays whole; 0 for any.
          piece: Tokens of the pieces that longer ones are cut into.
        """
        count = places.end_record - places.first_record
        self._slot_begin = offsets(count)
        lap, record = np.divmod(ranges(places.first_record, count), len(layout.tokens))
        begin = layout.record_begin[record] + lap * layout.total
        self._shift = np.arange(len(count)) * _APART - begin[self._slot_begin[:-1]]
        self._begin = begin + np.repeat(self._shift, count)
        self._end = self._begin + layout.tokens[record]
        self._values, self._at = _read(corpus, layout, record)
        self._find_sentences(layout, record)
        if max_length:
            self._cut(max_length, piece)

    def _find_sentences(self, layout: Layout, record: Int[np.ndarray, " slots"]) -> None:
        count = layout.sentences[record]
        lengths = self._values[ranges(self._at + layout.tokens[record], count)]
        slot_begin = offsets(count)
        self.end = np.cumsum(lengths, dtype=np.int64)
        # Lengths are summed over all slots at once; each slot's own sum starts at its position.
        before = np.append(0, self.end)[slot_begin[:-1]]
        self.end += np.repeat(self._begin - before, count)
        self.begin = self.end - lengths
        self.row_begin = slot_begin[self._slot_begin]

    def _cut(self, max_length: int, piece: int) -> None:
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
        """Where positions of the corpus, one for each row, are in the table."""
        return position + self._shift

    def first_from(self, position: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The first sentence of a row that begins at a position or later."""
        return np.searchsorted(self.begin, position, side="left")

    def after_last_until(self, position: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The sentence after the last one of a row that ends at a position or earlier."""
        return np.searchsorted(self.end, position, side="right")

    def copy_tokens(
        self,
        row: Int[np.ndarray, " n"],
        begin: Int[np.ndarray, " n"],
        end: Int[np.ndarray, " n"],
        target: Int[np.ndarray, " size"],
        at: Int[np.ndarray, " n"],
    ) -> None:
        """Writes the tokens from `begin` to `end` of each row into `target` from `at` onwards.

        Positions between records, where no token is, keep what `target` holds.
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
        """Sets `target` where the sentences from `first` up to `stop` start.

        That is for texts which `copy_tokens` wrote likewise; the first token of each counts too.
        """
        count = stop - first
        starts = self.begin[ranges(first, count)]
        inside = (starts >= np.repeat(begin, count)) & (starts < np.repeat(end, count))
        target[(starts + np.repeat(at - begin, count))[inside]] = True
        target[at] = True


def _read(
    corpus: RecordReader, layout: Layout, record: Int[np.ndarray, " slots"]
) -> tuple[np.ndarray, Int[np.ndarray, " slots"]]:
    """Reads each record once, and says where each slot's begins among the values."""
    wanted, slot = np.unique(record, return_inverse=True)
    values = np.frombuffer(b"".join(corpus.read(wanted)), corpus.dtype)
    at = offsets(layout.tokens[wanted] + layout.sentences[wanted])
    if at[-1] != len(values):
        raise UserError(
            f"{len(wanted)} records hold {len(values)} numbers, the corpus's index says {at[-1]}; "
            "shards and index are not of one corpus: run `bertjax prepare` again"
        )
    return values, at[slot]
