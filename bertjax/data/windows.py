"""Where examples lie in a corpus: known from the records' sizes alone, without reading them.

A position counts the tokens of all documents, one after the other. A *window* nominally begins at
some position; the example in it begins with the first sentence that starts there or later and takes
as many whole sentences as fit (`sentence_table.py` knows the sentences). Windows lie a little less
than their capacity apart, so that the sentence at a seam is mostly not lost; and they lie elsewhere
in each epoch, so that another is lost, and sentences meet in other company.
"""

from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.permutation import permute, unpermute
from bertjax.data.ragged import offsets
from bertjax.data.randomness import below, uniforms

SEAM = 0.8
"""How much closer than their capacity windows lie, in mean sentences."""

FOLLOWED = 2
"""How many windows before its own an example follows to begin where its predecessor ends."""


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
      end_record: The record after the last one. Numbers go on after the corpus's last record, for
        windows that run on from the end of the corpus to its beginning.
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


class DocumentWindows:
    """Windows inside documents: DOC-SENTENCES and SEGMENT-PAIR (Liu et al. 2019, section 4.2).

    A document that fits into one window is one. In a longer one, all windows but the first are
    moved towards its beginning by a random number of tokens, anew in every epoch, such that the
    last one begins inside the document and reaches its end. There are as many as are needed to move
    them at least as far as windows overlap.
    """

    def __init__(self, layout: Layout, capacity: int, seed: int, wanted: Bool[np.ndarray, " D"]):
        self.layout, self.capacity, self.seed = layout, capacity, seed
        self.stride = layout.stride(capacity)
        self.begin = layout.document_begin(np.arange(layout.num_documents + 1))
        size = np.diff(self.begin)
        overlap = capacity - self.stride
        count = np.where(size <= capacity, 1, -(-(size + overlap) // self.stride)) * wanted
        self.examples_of_document = offsets(count)
        self.most_moved = np.maximum(count * self.stride - size, 0)
        self.least_moved = np.maximum(self.most_moved - self.stride + 1, 0)

    def __len__(self) -> int:
        return int(self.examples_of_document[-1])

    def document(self, window: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        return np.searchsorted(self.examples_of_document, window, side="right") - 1

    def starts(self, epoch: int, window: Int[np.ndarray, " n"]) -> Int[np.ndarray, "windows n"]:
        """Where windows, and those to be followed before them, nominally begin."""
        document = self.document(window)
        number = window - self.examples_of_document[document]
        least, most = self.least_moved[document], self.most_moved[document]
        moved = least + below(most - least + 1, uniforms(self.seed, "shift", epoch, document))
        steps = number - np.arange(FOLLOWED, -1, -1)[:, None]
        return self.begin[document] + np.maximum(steps * self.stride - moved, 0)

    def size(self, start: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """How many tokens lie in windows that begin at some positions."""
        end = self.begin[np.searchsorted(self.begin, start, side="right")]
        return np.minimum(end - start, self.capacity)

    def records(
        self, starts: Int[np.ndarray, "windows n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The records to read, which are of one document and hold two sentences if it has two."""
        layout = self.layout
        first = layout.record_at(starts[0])
        document = np.searchsorted(self.begin, starts[0], side="right") - 1
        last_of_document = layout.record_of_document[document + 1] - 1
        reach = starts[-1] + 2 * self.capacity
        last = layout.record_at(np.minimum(reach, self.begin[document + 1] - 1))
        lonely = (first == last_of_document) & (layout.sentences[first] == 1)
        before = lonely & (first > layout.record_of_document[document])
        return first - before, last + 1


class StreamWindows:
    """Windows over all documents as one endless stream: FULL-SENTENCES (section 4.2).

    The stream is entered at another random position in each epoch and followed once around.
    """

    def __init__(self, layout: Layout, capacity: int, seed: int):
        self.layout, self.seed = layout, seed
        self.capacity = min(capacity, layout.total)
        self.stride = layout.stride(capacity)

    def __len__(self) -> int:
        return -(-self.layout.total // self.stride)

    def starts(self, epoch: int, window: Int[np.ndarray, " n"]) -> Int[np.ndarray, "windows n"]:
        """Where windows, and those to be followed before them, nominally begin."""
        entry = below(self.layout.total, uniforms(self.seed, "entry", epoch))
        steps = window - np.arange(FOLLOWED, -1, -1)[:, None]
        return entry + np.maximum(steps, 0) * self.stride

    def size(self, start: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """How many tokens lie in windows that begin at some positions."""
        return np.full(len(start), self.capacity)

    def records(
        self, starts: Int[np.ndarray, "windows n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The records to read."""
        reach = starts[-1] + 2 * self.capacity
        return self.layout.record_at(starts[0]), self.layout.record_at(reach) + 1


class ShortenedWindows:
    """Windows some of which are cut in two, so that a share of the examples is short.

    BERT shortens a tenth of its examples "to minimize the mismatch between pre-training and
    fine-tuning" (`short_seq_prob`). What a short example leaves of its window is another example
    here, the numbers of which follow those of the windows; so nothing is lost, and the number of
    examples stays the same. Windows are cut at a random token, other windows in each epoch.
    """

    def __init__(self, windows: DocumentWindows | StreamWindows, share: float):
        self.windows, self.seed = windows, windows.seed
        # Of n windows and r rests, 2 r are short: 2 r = share (n + r).
        self.num_rests = round(len(windows) * share / (2 - share))

    def __len__(self) -> int:
        return len(self.windows) + self.num_rests

    def window(self, epoch: int, example: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The number of the window that each example lies in."""
        window, rest = example.copy(), np.flatnonzero(example >= len(self.windows))
        number = example[rest] - len(self.windows)
        window[rest] = permute(number, len(self.windows), self.seed, "cut", epoch)
        return window

    @property
    def examples_of_document(self) -> Int[np.ndarray, " D_and_1"]:
        """The first example, rests aside, of each document; and the end of the last one's."""
        return self.windows.examples_of_document

    def document(self, epoch: int, example: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The document that each example is of."""
        return self.windows.document(self.window(epoch, example))

    def places(self, epoch: int, example: Int[np.ndarray, " n"]) -> Places:
        """Where each example's text lies."""
        window = self.window(epoch, example)
        starts = self.windows.starts(epoch, window)
        skipped = np.zeros(len(window), np.int64)
        capacity = np.full(len(window), self.windows.capacity)
        if self.num_rests:
            number = unpermute(window, len(self.windows), self.seed, "cut", epoch)
            draws = uniforms(self.seed, "cut at", epoch, window)
            size = self.windows.size(starts[-1])
            cut_at = np.where(size < 4, 1, 2 + below(np.maximum(size - 3, 1), draws))
            is_rest = example >= len(self.windows)
            skipped = np.where(is_rest, cut_at, 0)
            capacity = np.where((number < self.num_rests) & ~is_rest, cut_at, capacity)
        return Places(starts, skipped, capacity, *self.windows.records(starts))


class SentencePairs:
    """Two neighbouring sentences of a document: SENTENCE-PAIR (section 4.2).

    A document of m sentences has m // 2 pairs. They begin with its first or its second sentence,
    drawn anew in each epoch. Positions count sentences.
    """

    def __init__(self, layout: Layout, capacity: int, seed: int, *, lone_sentences: bool):
        self.layout, self.capacity, self.seed = layout, capacity, seed
        count = layout.document_sentences // 2
        self.examples_of_document = offsets(np.maximum(count, 1) if lone_sentences else count)
        self.record_begin = offsets(layout.sentences)

    def __len__(self) -> int:
        return int(self.examples_of_document[-1])

    def document(self, epoch: int, pair: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The document that each pair is of: the same one in every epoch."""
        return np.searchsorted(self.examples_of_document, pair, side="right") - 1

    def places(self, epoch: int, pair: Int[np.ndarray, " n"]) -> Places:
        """Where each pair lies."""
        document = self.document(epoch, pair)
        begin = self.record_begin[self.layout.record_of_document[document]]
        size = self.layout.document_sentences[document]
        moved = below(2, uniforms(self.seed, "shift", epoch, document))
        number = 2 * (pair - self.examples_of_document[document]) + moved
        start = begin + np.clip(number, 0, np.maximum(size - 2, 0))
        last = np.minimum(start + 1, begin + size - 1)
        first_record, last_record = (
            np.searchsorted(self.record_begin, at, side="right") - 1 for at in (start, last)
        )
        skipped, capacity = np.zeros(len(pair), np.int64), np.full(len(pair), self.capacity)
        return Places(start[None], skipped, capacity, first_record, last_record + 1)
