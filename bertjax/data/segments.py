"""Segments of examples: choose their sentences, pair them for NSP, build the batch arrays.

Next-sentence prediction: BERT (Devlin et al. 2019, appendix A.2) samples a random document for
every example with a random next sentence, and reuses the replaced text for a later example. Here
the examples of an epoch are shuffled into couples, and every other couple swaps its second
segments, both split at the same fraction of their sentences. So labels are balanced exactly, nearly
all text is used once per epoch, and every example is a function of its index.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.data.layout import TextLocations
from bertjax.data.random import below, permute, uniforms, unpermute
from bertjax.data.sentence_table import SentenceTable
from bertjax.data.sequence_template import Frame, SequenceTemplate

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


class Pairings(NamedTuple):
    """The next-sentence label and the partner of n examples.

    Attributes:
      is_random: Whether the second segment is from another example (label 1).
      partner: Index of that example; -1 if it must be sampled by
        `sample_other_documents`.
      split: The fraction of its sentences at which an example is split; equal within a couple.
    """

    is_random: Bool[np.ndarray, " n"]
    partner: Int[np.ndarray, " n"]
    split: Float[np.ndarray, " n"]


def assign_partners(epoch: int, example: Int[np.ndarray, " n"], size: int, seed: int) -> Pairings:
    """Pair `size` examples of an epoch at random, and choose the couples that swap segments."""
    rank = permute(example, size, seed, "couples", epoch)
    is_random = rank % 4 >= 2
    partner = np.full(len(example), -1)
    coupled = np.flatnonzero(is_random & (rank ^ 1 < size))
    partner[coupled] = unpermute(rank[coupled] ^ 1, size, seed, "couples", epoch)
    return Pairings(is_random, partner, uniforms(seed, "split", epoch, rank // 2))


def sample_other_documents(
    epoch: int,
    example: Int[np.ndarray, " n"],
    document: Int[np.ndarray, " n"],
    examples_of_document: Int[np.ndarray, " D_and_1"],
    seed: int,
) -> Int[np.ndarray, " n"]:
    """Sample for every example one of the examples of all other documents, uniformly."""
    begin, end = examples_of_document[document], examples_of_document[document + 1]
    others = examples_of_document[-1] - (end - begin)
    sampled = below(others, uniforms(seed, "elsewhere", epoch, example))
    return np.where(sampled >= begin, sampled + end - begin, sampled)


def assemble(
    table: SentenceTable,
    parts: tuple[Segment, ...],
    specials: SequenceTemplate,
    max_seq_length: int,
    word_starts: Bool[np.ndarray, " V"] | None,
) -> dict[str, np.ndarray]:
    """Assemble batch rows [CLS] A [SEP] or [CLS] A [SEP] B [SEP], followed by padding.

    With `cls_last`: A [SEP] [CLS] or A [SEP] B [SEP] [CLS], where [CLS] has segment id 2.

    Args:
      table: The tokens of the segments.
      parts: One or two segments of each example.
      specials: The special tokens and their order.
      max_seq_length: L.
      word_starts: Whether each token of the vocabulary starts a word; None for no `word_starts` in
        the batch. The first token of a sentence always starts a word: byte-level tokenizers
        recognise a word by the space before it, which the first word of a sentence lacks.

    Returns:
      `input_ids`, `segment_ids` (int32 [n L]), `attention_mask` (bool [n L]) and, if `word_starts`
      is given, `word_starts` (bool [n L]).
    """
    frame, mask = specials.frame_rows([part.length for part in parts], max_seq_length)
    for index, part in enumerate(parts):
        table.copy_tokens(part.row, part.begin, part.end, frame.ids, frame.offsets(index))
    ids = frame.ids.reshape(mask.shape)
    batch = {"input_ids": ids, "segment_ids": _segment_ids(frame, mask, specials)}
    batch["attention_mask"] = mask
    if word_starts is not None:
        starts = word_starts[ids]
        for index, part in enumerate(parts):
            table.mark_sentences(*part[1:], starts.reshape(-1), frame.offsets(index))
        batch["word_starts"] = starts
    return batch


def _segment_ids(
    frame: Frame, mask: Bool[np.ndarray, "n L"], specials: SequenceTemplate
) -> Int[np.ndarray, "n L"]:
    """Return 1 for the second segment and the separator after it, 2 for [CLS] if last, else 0."""
    segment_ids = np.zeros(mask.shape, np.int32)
    if len(frame.segment_starts) == 2:
        second = frame.segment_starts[1].astype(np.int32)[:, None]
        position = np.arange(mask.shape[1], dtype=np.int32)
        segment_ids = (mask & (position >= second)).astype(np.int32)
    if specials.cls_id is not None and specials.cls_last:
        segment_ids[np.arange(len(mask)), frame.cls_positions] = 2
    return segment_ids
