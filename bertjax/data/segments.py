"""Select the sentences of examples: one segment, or two segments A and B."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.data.layout import TextLocations
from bertjax.data.random import below
from bertjax.data.sentence_table import SentenceTable

Rows = Int[np.ndarray, " n"]


class Segment(NamedTuple):
    """A segment of text for each of n examples: consecutive sentences, possibly truncated.

    Attributes:
      row: Row of the sentence table.
      first: Index of the first sentence in the table.
      stop: Index after the last sentence.
      begin: Position of the first token in the table.
      end: Position after the last token.
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
        """Select this segment where the condition is true, else the other, as in `np.where`."""
        return Segment(*(np.where(condition, *both) for both in zip(self, other, strict=True)))

    def take(self, rows: Rows) -> "Segment":
        """Return the segments of some of the examples."""
        return Segment(*(values[rows] for values in self))


def make_segments(table: SentenceTable, row: Rows, first: Rows, stop: Rows) -> Segment:
    """Create segments of the sentences from `first` to `stop`, exclusive."""
    return Segment(row, first, stop, table.begin[first], table.end[stop - 1])


def fill_windows(
    table: SentenceTable, locations: TextLocations, max_length: int, *, at_least: int
) -> Segment:
    """Fill each window with as many whole sentences as fit.

    A segment has at least `at_least` sentences, even if these do not fit, unless the document has
    fewer. At the end of a document it therefore may start before the window.
    """
    row = np.arange(len(locations.capacity))
    row_begin, row_end = table.row_begin[:-1], table.row_begin[1:]
    first = np.minimum(_window_begin(table, locations, max_length), row_end - 1)
    window = table.begin[first]
    after = table.end_of_sentences_before(window + locations.skipped)
    first = np.where(locations.skipped, np.maximum(after, first + at_least), first)
    first = np.maximum(np.minimum(first, row_end - at_least), row_begin)
    stop = table.end_of_sentences_before(window + locations.capacity)
    stop = np.clip(stop, np.minimum(first + at_least, row_end), row_end)
    return make_segments(table, row, first, stop)


def _window_begin(table: SentenceTable, locations: TextLocations, max_length: int) -> Rows:
    """Return the first sentence of each window.

    It is the first one that starts at or after the nominal start, or an earlier one with which the
    preceding window ended because it did not fit.
    """
    starts = table.locate(locations.starts)
    first = table.first_sentence_at(starts[0])
    for start in starts[1:]:
        first = np.minimum(first, table.row_begin[1:] - 1)
        stop = table.end_of_sentences_before(table.begin[first] + max_length)
        first = np.minimum(table.first_sentence_at(start), np.maximum(stop, first + 1))
    return first


def pair_neighbours(table: SentenceTable, locations: TextLocations, row_origin: Rows) -> Segment:
    """Create segments of two neighbouring sentences, or of one if the document has no other.

    Args:
      table: The table of the records of `locations`.
      locations: Locations whose starts are counted in sentences.
      row_origin: Index in the corpus of the first sentence of each row.
    """
    row = np.arange(len(locations.capacity))
    first = table.row_begin[:-1] + locations.starts[-1] - row_origin
    return make_segments(table, row, first, np.minimum(first + 2, table.row_begin[1:]))


def split(
    table: SentenceTable, text: Segment, share: Float[np.ndarray, " n"]
) -> tuple[Segment, Segment]:
    """Split segments between two sentences; a single sentence is returned twice.

    Args:
      table: The table of the segments.
      text: The segments.
      share: Uniform floats in [0, 1) that choose the boundaries, all with equal probability.
    """
    boundaries = np.maximum(text.stop - text.first - 1, 1)
    middle = text.first + 1 + below(boundaries, share)
    second = np.minimum(middle, text.stop - 1)
    return (
        make_segments(table, text.row, text.first, middle),
        make_segments(table, text.row, second, text.stop),
    )


def fill(table: SentenceTable, text: Segment, max_tokens: Rows) -> Segment:
    """Create segments of as many sentences as fit into `max_tokens` tokens, but at least one.

    Args:
      table: The table of the segments.
      text: Segments at whose starts the new ones start.
      max_tokens: Number of tokens of each segment.
    """
    stop = table.end_of_sentences_before(text.begin + max_tokens)
    stop = np.clip(stop, text.first + 1, table.row_begin[text.row + 1])
    return make_segments(table, text.row, text.first, stop)


def truncate(
    a: Segment, b: Segment, max_length: int, shares: Float[np.ndarray, "2 n"]
) -> tuple[Segment, Segment]:
    """Truncate pairs of segments: the longer one first, then both equally.

    BERT (`truncate_seq_pair`) removes one token at a time, from the front or the back at random.
    Here the lengths are the same, but the number of tokens removed from the front is sampled once,
    uniformly.

    Args:
      a: First segments.
      b: Second segments.
      max_length: Maximum number of tokens of both together.
      shares: Uniform floats in [0, 1) that choose how many tokens of A and B are removed from the
        front.
    """
    excess = np.maximum(a.length + b.length - max_length, 0)
    difference = a.length - b.length
    uneven = np.minimum(excess, np.abs(difference))
    even = excess - uneven
    cut_a = np.where(difference > 0, uneven, 0) + even // 2
    return _trim(a, cut_a, shares[0]), _trim(b, excess - cut_a, shares[1])


def _trim(text: Segment, cut: Rows, share: Float[np.ndarray, " n"]) -> Segment:
    front = below(cut + 1, share)
    return text._replace(begin=text.begin + front, end=text.end - (cut - front))
