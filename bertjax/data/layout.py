"""Index of a corpus: the token positions at which records and documents begin.

A position counts the tokens of all documents in order. Rows of unequal length are stored end to
end.
"""

from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int


def offsets(lengths: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n_and_1"]:
    """Where each row begins, and at the end where the last one ends."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def ranges(
    starts: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " total"]:
    """The numbers start, start + 1 ... of every row, one row after the other."""
    at = offsets(lengths)
    return np.arange(at[-1]) + np.repeat(starts - at[:-1], lengths)


SEAM = 0.8
"""How much closer than their capacity windows lie, in mean sentences."""


class RecordSizes(Protocol):
    """What is asked of a corpus here."""

    tokens: Int[np.ndarray, " R"]
    sentences: Int[np.ndarray, " R"]
    document: Int[np.ndarray, " R"]


class Places(NamedTuple):
    """Where the text of some examples lies.

    Attributes:
      starts: The position at which each example's window nominally begins, last, and before it
        those of the windows that have to be followed to know where it really begins.
      skipped: Tokens at the beginning of the window that are another example's.
      capacity: The tokens, counted from the window's beginning, within which the example ends.
      first_record: The first record that has to be read for it.
      end_record: The record after the last one. Numbers continue after the corpus's last record,
        for windows that run on from the end of the corpus to its beginning.
    """

    starts: Int[np.ndarray, "windows n"]
    skipped: Int[np.ndarray, " n"]
    capacity: Int[np.ndarray, " n"]
    first_record: Int[np.ndarray, " n"]
    end_record: Int[np.ndarray, " n"]

    def __add__(self, other: "Places") -> "Places":
        both = zip(self, other, strict=True)
        return Places(*(np.concatenate(pair, axis=-1) for pair in both))


class Layout:
    """Positions of records and documents, from the index of a corpus.

    Attributes:
      record_begin: Where each record begins, and the end of the last one.
      gap: Positions after each record that hold no token of it: 1 at the end of a document where
        documents are kept apart by a separator, otherwise 0.
      record_of_document: The first record of each document, and the number of records.
      document_sentences: How many sentences each document has.
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
        """The position of a document's first token; of the next document's, its end."""
        return self.record_begin[self.record_of_document[document]]

    def record_at(self, position: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The record that holds a position, counted on beyond the end of the corpus."""
        lap, inside = np.divmod(position, self.total)
        record = np.searchsorted(self.record_begin, inside, side="right") - 1
        return record + lap * len(self.tokens)

    def stride(self, capacity: int) -> int:
        """The nominal distance of windows of some capacity."""
        return max(1, capacity - round(min(SEAM * self.mean_sentence, capacity / 2)))
