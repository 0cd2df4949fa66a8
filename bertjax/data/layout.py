"""Index of a corpus: the token positions at which records and documents start.

A position counts the tokens of all documents in order. Ragged arrays are stored as the
concatenation of their rows, with the offsets of the rows.
"""

from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int


def offsets(lengths: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n_and_1"]:
    """Return the start of each row of a ragged array, followed by the end of the last one."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def ranges(
    starts: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " total"]:
    """Return start, start + 1, ..., start + length - 1 of every row, concatenated."""
    at = offsets(lengths)
    return np.arange(at[-1]) + np.repeat(starts - at[:-1], lengths)


OVERLAP_SENTENCES = 0.8
"""Overlap of consecutive windows, in mean sentence lengths (see `data/windows.py`)."""


class RecordSizes(Protocol):
    """The part of the corpus interface that the layout uses."""

    tokens: Int[np.ndarray, " R"]
    sentences: Int[np.ndarray, " R"]
    document: Int[np.ndarray, " R"]


class TextLocations(NamedTuple):
    """Locations of the text of n examples in a corpus.

    Attributes:
      starts: Nominal start positions of windows. The last row has the windows of the examples; the
        rows before have the preceding windows, which determine the actual starts.
      skipped: Number of tokens at the start of the window that belong to another example.
      capacity: Number of tokens from the start of the window within which the example ends.
      first_record: Index of the first record that contains text of the example.
      end_record: Index after the last such record. It may exceed the number of records: a window
        at the end of the corpus continues at its start.
    """

    starts: Int[np.ndarray, "windows n"]
    skipped: Int[np.ndarray, " n"]
    capacity: Int[np.ndarray, " n"]
    first_record: Int[np.ndarray, " n"]
    end_record: Int[np.ndarray, " n"]

    def __add__(self, other: "TextLocations") -> "TextLocations":
        both = zip(self, other, strict=True)
        return TextLocations(*(np.concatenate(pair, axis=-1) for pair in both))


class Layout:
    """Positions of the records and documents of a corpus.

    Attributes:
      record_begin: Start of each record, followed by the end of the last one.
      gap: Number of positions after each record without a token: 1 at the end of a document if
        documents are separated by a [SEP] token, else 0.
      record_of_document: Index of the first record of each document, followed by the number of
        records.
      document_sentences: Number of sentences of each document.
      mean_sentence: Mean number of tokens of a sentence.

    Args:
      corpus: A split of a corpus.
      separated: Whether there is a position for a separator after each document.
    """

    def __init__(self, corpus: RecordSizes, *, separated: bool = False):
        ends = np.diff(corpus.document, append=corpus.document[-1] + 1) > 0
        self.tokens, self.sentences = corpus.tokens, corpus.sentences
        self.gap = (ends & separated).astype(np.int64)
        self.record_begin = offsets(corpus.tokens + self.gap)
        self.record_of_document = np.append(0, np.flatnonzero(ends) + 1)
        self.document_sentences = np.add.reduceat(corpus.sentences, self.record_of_document[:-1])
        self.mean_sentence = corpus.tokens.sum() / corpus.sentences.sum()

    @property
    def num_documents(self) -> int:
        return len(self.record_of_document) - 1

    @property
    def total(self) -> int:
        return int(self.record_begin[-1])

    def document_begin(self, document: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the position of a document's first token."""
        return self.record_begin[self.record_of_document[document]]

    def record_at(self, position: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the record that contains a position; both continue after the end of the corpus."""
        lap, inside = np.divmod(position, self.total)
        record = np.searchsorted(self.record_begin, inside, side="right") - 1
        return record + lap * len(self.tokens)

    def stride(self, capacity: int) -> int:
        """Return the nominal distance between windows of `capacity` tokens."""
        return max(1, capacity - round(min(OVERLAP_SENTENCES * self.mean_sentence, capacity / 2)))
