"""The sentences around some examples: read in one go, found by position, copied into rows."""

from typing import Protocol

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.ragged import offsets, ranges
from bertjax.data.windows import Layout, Places
from bertjax.errors import UserError

_ROW = 40
"""Positions inside a row have fewer bits than this, so that (row, position) is one number."""


class RecordReader(Protocol):
    """What is asked of a corpus here."""

    dtype: np.dtype

    def read(self, records: Int[np.ndarray, " n"]) -> list[bytes]: ...


class SentenceTable:
    """All sentences of the records that each example needs, a row for each example.

    Attributes:
      begin: The position of each sentence's first token.
      end: The position after its last token.
      row_begin: Where each row's sentences begin in `begin` and `end`; and where the last ends.
    """

    begin: Int[np.ndarray, " sentences"]
    end: Int[np.ndarray, " sentences"]
    row_begin: Int[np.ndarray, " rows_and_1"]

    def __init__(self, corpus: RecordReader, layout: Layout, places: Places, longest: int | None):
        """Reads the records of `places`; sentences longer than `longest` are cut."""
        count = places.end_record - places.first_record
        self._slot_begin = offsets(count)
        lap, record = np.divmod(ranges(places.first_record, count), len(layout.tokens))
        self._begin = layout.record_begin[record] + lap * layout.total
        self._end = self._begin + layout.tokens[record]
        self._values, self._at = _read(corpus, layout, record)
        self._read_sentences(layout, record)
        if longest is not None:
            self._cut(longest)
        self._origin = self._begin[self._slot_begin[:-1]]
        row = np.repeat(np.arange(len(count)), np.diff(self.row_begin)) << _ROW
        origin = np.repeat(self._origin, np.diff(self.row_begin))
        self._begin_keys, self._end_keys = row + self.begin - origin, row + self.end - origin

    def _read_sentences(self, layout: Layout, record: Int[np.ndarray, " slots"]) -> None:
        count = layout.sentences[record]
        lengths = self._values[ranges(self._at + layout.tokens[record], count)].astype(np.int64)
        slot_begin = offsets(count)
        ends = offsets(lengths)
        # Lengths are summed over all slots at once; each slot's own sum starts at its position.
        shift = np.repeat(self._begin - ends[slot_begin[:-1]], count)
        self.begin, self.end = ends[:-1] + shift, ends[1:] + shift
        self.row_begin = slot_begin[self._slot_begin]

    def _cut(self, longest: int) -> None:
        lengths = self.end - self.begin
        if not len(lengths) or lengths.max() <= longest:
            return
        pieces = -(-lengths // longest)
        first = np.repeat(self.begin, pieces)
        self.begin = first + ranges(np.zeros(len(pieces), np.int64), pieces) * longest
        self.end = np.minimum(self.begin + longest, np.repeat(self.end, pieces))
        self.row_begin = offsets(pieces)[self.row_begin]

    def first_from(
        self, row: Int[np.ndarray, " n"], position: Int[np.ndarray, " n"]
    ) -> Int[np.ndarray, " n"]:
        """The first sentence of a row that begins at a position or later."""
        return np.searchsorted(self._begin_keys, self._key(row, position), side="left")

    def after_last_until(
        self, row: Int[np.ndarray, " n"], position: Int[np.ndarray, " n"]
    ) -> Int[np.ndarray, " n"]:
        """The sentence after the last one of a row that ends at a position or earlier."""
        return np.searchsorted(self._end_keys, self._key(row, position), side="right")

    def _key(self, row: np.ndarray, position: np.ndarray) -> Int[np.ndarray, " n"]:
        return (row << _ROW) + np.maximum(position - self._origin[row], 0)

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
