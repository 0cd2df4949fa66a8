"""A corpus in memory, with documents of given sentence lengths."""

import numpy as np


class MemoryCorpus:
    """A corpus in memory, given as sentence lengths; every token id is its own position.

    `read_records` collects the indices of the records that were read.
    """

    dtype = np.dtype("<u4")
    path, split = "memory", "train"

    def __init__(self, documents: list[list[int]], record_tokens: int = 2048):
        self.documents = documents
        self.read_records: list[int] = []
        self.records, tokens, sentences, document = [], [], [], []
        position = 0
        for number, lengths in enumerate(documents):
            for group in self._groups(lengths, record_tokens):
                size = sum(group)
                self.records.append([*range(position, position + size), *group])
                position += size
                tokens.append(size)
                sentences.append(len(group))
                document.append(number)
        self.tokens, self.sentences, self.document = map(np.array, (tokens, sentences, document))

    @staticmethod
    def _groups(lengths: list[int], record_tokens: int) -> list[list[int]]:
        groups: list[list[int]] = [[]]
        for length in lengths:
            if groups[-1] and sum(groups[-1]) + length > record_tokens:
                groups.append([])
            groups[-1].append(length)
        return groups

    @property
    def num_tokens(self) -> int:
        return int(self.tokens.sum())

    def read(self, records: np.ndarray) -> list[bytes]:
        self.read_records.extend(records.tolist())
        return [np.array(self.records[number], self.dtype).tobytes() for number in records]

    def document_at(self, position: int) -> int:
        """The document of a token."""
        ends = np.cumsum([sum(lengths) for lengths in self.documents])
        return int(np.searchsorted(ends, position, side="right"))

    def sentence_spans(self) -> list[tuple[int, int, int]]:
        """(begin, end, document) of every sentence."""
        spans, position = [], 0
        for number, lengths in enumerate(self.documents):
            for length in lengths:
                spans.append((position, position + length, number))
                position += length
        return spans
