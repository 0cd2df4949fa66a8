"""Locate the examples of a corpus from the sizes of its records, without reading them.

A *window* has a nominal start position. Its example starts with the first sentence at or after that
position, and contains as many whole sentences as fit. If the preceding window ends earlier, because
its next sentence did not fit, the example starts with that sentence instead, so that it is not
lost. For this, the ends of a few preceding windows are computed; a sentence is lost only after a
longer chain of long sentences.

Windows have other positions in each epoch, so that sentences are combined differently and tokens
left out in one epoch are used in others. On English Wikipedia (27 tokens per sentence, 3,300 per
document) an epoch leaves out 2.4% of the tokens at length 128 and 0.6% at 512, and uses 6% and 1.3%
twice (full-sentences, measured by `tools/measure_loader.py`). With random next sentences 4.9% and
2.6% are left out. Without the preceding windows, 8% were left out at 128, mostly in long sentences.
"""

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.layout import Layout, TextLocations, offsets
from bertjax.data.random import below, permute, uniforms, unpermute

NUM_PRECEDING = 2
"""Number of preceding windows that are computed to find the start of an example."""


class DocumentWindows:
    """Windows inside documents: DOC-SENTENCES and SEGMENT-PAIR (Liu et al. 2019, section 4.2).

    A document that fits into one window has one. In a longer one, all windows but the first are
    shifted towards its start by a random number of tokens, different in every epoch, such that the
    last one starts inside the document and reaches its end. The number of windows is such that the
    shift can be at least the overlap of windows.

    Args:
      layout: The layout of the corpus.
      capacity: Number of tokens of a window.
      seed: The run's seed.
      included: Whether each document has examples.
    """

    def __init__(self, layout: Layout, capacity: int, seed: int, included: Bool[np.ndarray, " D"]):
        self.layout, self.capacity, self.seed = layout, capacity, seed
        self.stride = layout.stride(capacity)
        self.begin = layout.document_begin(np.arange(layout.num_documents + 1))
        size = np.diff(self.begin)
        overlap = capacity - self.stride
        count = np.where(size <= capacity, 1, -(-(size + overlap) // self.stride)) * included
        self.examples_of_document = offsets(count)
        self.max_shift = np.maximum(count * self.stride - size, 0)
        self.min_shift = np.maximum(self.max_shift - self.stride + 1, 0)

    def __len__(self) -> int:
        return int(self.examples_of_document[-1])

    def document(self, window: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the document that each window is in."""
        return np.searchsorted(self.examples_of_document, window, side="right") - 1

    def starts(self, epoch: int, window: Int[np.ndarray, " n"]) -> Int[np.ndarray, "windows n"]:
        """Return the nominal starts of windows, after those of the preceding windows."""
        document = self.document(window)
        number = window - self.examples_of_document[document]
        low, high = self.min_shift[document], self.max_shift[document]
        shift = low + below(high - low + 1, uniforms(self.seed, "shift", epoch, document))
        steps = number - np.arange(NUM_PRECEDING, -1, -1)[:, None]
        return self.begin[document] + np.maximum(steps * self.stride - shift, 0)

    def size(self, start: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the number of tokens in windows with the given starts."""
        end = self.begin[np.searchsorted(self.begin, start, side="right")]
        return np.minimum(end - start, self.capacity)

    def records(
        self, starts: Int[np.ndarray, "windows n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Return first record and end of the records to read.

        They are from one document, and have two sentences if the document has.
        """
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
    """Windows over the concatenation of all documents: FULL-SENTENCES (section 4.2).

    Each epoch starts at another random position and goes through the corpus once, cyclically.

    Args:
      layout: The layout of the corpus.
      capacity: Number of tokens of a window.
      seed: The run's seed.
    """

    def __init__(self, layout: Layout, capacity: int, seed: int):
        self.layout, self.seed = layout, seed
        self.capacity = min(capacity, layout.total)
        self.stride = layout.stride(capacity)

    def __len__(self) -> int:
        return -(-self.layout.total // self.stride)

    def starts(self, epoch: int, window: Int[np.ndarray, " n"]) -> Int[np.ndarray, "windows n"]:
        """Return the nominal starts of windows, after those of the preceding windows."""
        entry = below(self.layout.total, uniforms(self.seed, "entry", epoch))
        steps = window - np.arange(NUM_PRECEDING, -1, -1)[:, None]
        return entry + np.maximum(steps, 0) * self.stride

    def size(self, start: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the number of tokens in windows with the given starts."""
        return np.full(len(start), self.capacity)

    def records(
        self, starts: Int[np.ndarray, "windows n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Return first record and end of the records to read."""
        reach = starts[-1] + 2 * self.capacity
        return self.layout.record_at(starts[0]), self.layout.record_at(reach) + 1


class ShortenedWindows:
    """Windows some of which are split in two, so that a fraction of the examples is short.

    BERT shortens 10% of its examples "to minimize the mismatch between pre-training and
    fine-tuning" (`short_seq_prob`). Here the rest of the window of a short example is another
    example, with an index after those of all windows: no text is lost, and the number of examples
    is the same in every epoch. Windows are split at a random token, different ones in each epoch.

    Args:
      windows: The windows.
      share: The fraction of examples that are short.
    """

    def __init__(self, windows: DocumentWindows | StreamWindows, share: float):
        self.windows, self.seed = windows, windows.seed
        # With n windows and r rests, 2 r examples are short: 2 r = share (n + r).
        self.num_rests = round(len(windows) * share / (2 - share))

    def __len__(self) -> int:
        return len(self.windows) + self.num_rests

    def window(self, epoch: int, example: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the window that each example is in."""
        window, rest = example.copy(), np.flatnonzero(example >= len(self.windows))
        number = example[rest] - len(self.windows)
        window[rest] = permute(number, len(self.windows), self.seed, "cut", epoch)
        return window

    @property
    def examples_of_document(self) -> Int[np.ndarray, " D_and_1"]:
        """Offsets of the documents in the examples, without rests."""
        return self.windows.examples_of_document

    def document(self, epoch: int, example: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the document that each example is from."""
        return self.windows.document(self.window(epoch, example))

    def locate(self, epoch: int, example: Int[np.ndarray, " n"]) -> TextLocations:
        """Return the location of each example."""
        window = self.window(epoch, example)
        starts = self.windows.starts(epoch, window)
        skipped = np.zeros(len(window), np.int64)
        capacity = np.full(len(window), self.windows.capacity)
        if self.num_rests:
            number = unpermute(window, len(self.windows), self.seed, "cut", epoch)
            uniform = uniforms(self.seed, "cut at", epoch, window)
            size = self.windows.size(starts[-1])
            cut_at = np.where(size < 4, 1, 2 + below(np.maximum(size - 3, 1), uniform))
            is_rest = example >= len(self.windows)
            skipped = np.where(is_rest, cut_at, 0)
            capacity = np.where((number < self.num_rests) & ~is_rest, cut_at, capacity)
        return TextLocations(starts, skipped, capacity, *self.windows.records(starts))


class SentencePairs:
    """Two neighbouring sentences of a document: SENTENCE-PAIR (section 4.2).

    A document of m sentences has m // 2 pairs. They start at its first or second sentence, sampled
    in each epoch. Positions are counted in sentences.

    Args:
      layout: The layout of the corpus.
      capacity: Maximum number of tokens of a pair.
      seed: The run's seed.
      lone_sentences: Whether a document of one sentence has an example.
    """

    def __init__(self, layout: Layout, capacity: int, seed: int, *, lone_sentences: bool):
        self.layout, self.capacity, self.seed = layout, capacity, seed
        count = layout.document_sentences // 2
        self.examples_of_document = offsets(np.maximum(count, 1) if lone_sentences else count)
        self.record_begin = offsets(layout.sentences)

    def __len__(self) -> int:
        return int(self.examples_of_document[-1])

    def document(self, epoch: int, pair: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the document that each pair is from, the same in every epoch."""
        return np.searchsorted(self.examples_of_document, pair, side="right") - 1

    def locate(self, epoch: int, pair: Int[np.ndarray, " n"]) -> TextLocations:
        """Return the location of each pair."""
        document = self.document(epoch, pair)
        begin = self.record_begin[self.layout.record_of_document[document]]
        size = self.layout.document_sentences[document]
        shift = below(2, uniforms(self.seed, "shift", epoch, document))
        number = 2 * (pair - self.examples_of_document[document]) + shift
        start = begin + np.clip(number, 0, np.maximum(size - 2, 0))
        last = np.minimum(start + 1, begin + size - 1)
        first_record, last_record = (
            np.searchsorted(self.record_begin, at, side="right") - 1 for at in (start, last)
        )
        skipped, capacity = np.zeros(len(pair), np.int64), np.full(len(pair), self.capacity)
        return TextLocations(start[None], skipped, capacity, first_record, last_record + 1)
