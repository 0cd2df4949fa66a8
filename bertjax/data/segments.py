"""Choose the sentences of an example: one text, or two segments A and B."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.data.layout import Places
from bertjax.data.random import below
from bertjax.data.sentence_table import SentenceTable

Rows = Int[np.ndarray, " n"]


class Segment(NamedTuple):
    """A text for each of some examples: whole sentences, or what truncation leaves of them.

    Attributes:
      row: The row of the sentence table.
      first: Its first sentence in the table.
      stop: The sentence after its last one.
      begin: The position of its first token.
      end: The position after its last token.
    """

    row: Rows
    first: Rows
    stop: Rows
    begin: Rows
    end: Rows

    @property
    def length(self) -> Rows:
        return self.end - self.begin

    def where(self, condition: Bool[np.ndarray, " n"], other: "Segment") -> "Segment":
        """Chooses this segment for the examples that meet the condition, else the other."""
        return Segment(*(np.where(condition, *both) for both in zip(self, other, strict=True)))

    def take(self, rows: Rows) -> "Segment":
        """The segments of some of the examples."""
        return Segment(*(values[rows] for values in self))


def of_sentences(table: SentenceTable, row: Rows, first: Rows, stop: Rows) -> Segment:
    """The segment of whole sentences from `first` up to `stop`."""
    return Segment(row, first, stop, table.begin[first], table.end[stop - 1])


def in_windows(table: SentenceTable, places: Places, max_length: int, *, at_least: int) -> Segment:
    """As many whole sentences as fit, from the first one of each window.

    There are `at_least` so many, even if they do not fit, unless the document has fewer. For that,
    a text at the end of a document begins earlier than its place if it must.
    """
    row = np.arange(len(places.capacity))
    row_begin, row_end = table.row_begin[:-1], table.row_begin[1:]
    first = np.minimum(_window_begin(table, places, max_length), row_end - 1)
    window = table.begin[first]
    after = table.after_last_until(window + places.skipped)
    first = np.where(places.skipped, np.maximum(after, first + at_least), first)
    first = np.maximum(np.minimum(first, row_end - at_least), row_begin)
    stop = table.after_last_until(window + places.capacity)
    stop = np.clip(stop, np.minimum(first + at_least, row_end), row_end)
    return of_sentences(table, row, first, stop)


def _window_begin(table: SentenceTable, places: Places, max_length: int) -> Rows:
    """The first sentence of each window.

    It is the first one that starts at the nominal start or later; but where the window before ends
    earlier, since the next sentence did not fit, it is that sentence.
    """
    starts = table.locate(places.starts)
    first = table.first_from(starts[0])
    for start in starts[1:]:
        first = np.minimum(first, table.row_begin[1:] - 1)
        stop = table.after_last_until(table.begin[first] + max_length)
        first = np.minimum(table.first_from(start), np.maximum(stop, first + 1))
    return first


def neighbours(table: SentenceTable, places: Places, row_origin: Rows) -> Segment:
    """The sentence that each place counts to and its neighbour, if the document has two.

    Args:
      table: Holds the records of `places`.
      places: Whose starts count sentences.
      row_origin: The number of the first sentence of each row.
    """
    row = np.arange(len(places.capacity))
    first = table.row_begin[:-1] + places.starts[-1] - row_origin
    return of_sentences(table, row, first, np.minimum(first + 2, table.row_begin[1:]))


def split(
    table: SentenceTable, text: Segment, share: Float[np.ndarray, " n"]
) -> tuple[Segment, Segment]:
    """Splits texts between two sentences; where there is only one, both segments are it.

    Args:
      table: Holds the texts.
      text: What is split.
      share: Where, in [0, 1): all places between two sentences are equally likely.
    """
    seams = np.maximum(text.stop - text.first - 1, 1)
    middle = text.first + 1 + below(seams, share)
    second = np.minimum(middle, text.stop - 1)
    return (
        of_sentences(table, text.row, text.first, middle),
        of_sentences(table, text.row, second, text.stop),
    )


def fill(table: SentenceTable, text: Segment, room: Rows) -> Segment:
    """As many whole sentences as fit into some room from where a text begins, at least one."""
    stop = table.after_last_until(text.begin + room)
    stop = np.clip(stop, text.first + 1, table.row_begin[text.row + 1])
    return of_sentences(table, text.row, text.first, stop)


def truncate(
    a: Segment, b: Segment, max_length: int, shares: Float[np.ndarray, "2 n"]
) -> tuple[Segment, Segment]:
    """Shortens the longer segment of each pair, and both alike once they are equally long.

    BERT drops token by token (`truncate_seq_pair`), each from the front or the back as a coin
    falls. The lengths are the same here; how much of it goes from the front is sampled once and
    uniformly.

    Args:
      a: First segments.
      b: Second segments.
      max_length: Tokens that both may have together.
      shares: How much of what A and B lose is taken from the front, in [0, 1).
    """
    excess = np.maximum(a.length + b.length - max_length, 0)
    ahead = a.length - b.length
    uneven = np.minimum(excess, np.abs(ahead))
    even = excess - uneven
    cut_a = np.where(ahead > 0, uneven, 0) + even // 2
    return _trim(a, cut_a, shares[0]), _trim(b, excess - cut_a, shares[1])


def _trim(text: Segment, cut: Rows, share: Float[np.ndarray, " n"]) -> Segment:
    front = below(cut + 1, share)
    return text._replace(begin=text.begin + front, end=text.end - (cut - front))
