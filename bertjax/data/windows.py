"""Locate the examples of a corpus from the sizes of its records, without reading them.

A *window* nominally begins at some position; its example begins with the first sentence that starts
there or later, and takes as many whole sentences as fit. Where the window before ends earlier,
because its next sentence did not fit, the example begins with that sentence instead, so that it is
not lost. To know this, an example follows a few windows before its own; only a longer chain of long
sentences still loses one.

Windows lie elsewhere in each epoch, so that sentences meet in other company, and what one epoch
leaves out is in others. On English Wikipedia (27 tokens a sentence, 3,300 a document) an epoch
leaves out 2.4% of the tokens at a length of 128 and 0.6% at 512, and has 6% and 1.3% of them twice
(full-sentences; `tools/measure_loader.py` measures it). Random next sentences raise what is left
out to 4.9% and 2.6%. Without following, 8% were left out at 128, most of them in long sentences.
"""

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.layout import Layout, Places, offsets
from bertjax.data.random import below, permute, uniforms, unpermute

FOLLOWED = 2
"""How many windows before its own an example follows to begin where its predecessor ends."""


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
