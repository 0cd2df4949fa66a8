"""Corpora in memory, of the same interface as those on disk, small enough to reckon with."""

import numpy as np
import pytest


class MemoryCorpus:
    """Documents given as lengths of their sentences; every token is its own position.

    `read_records` collects the numbers of the records that were read.
    """

    dtype = np.dtype("<u4")

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


@pytest.fixture
def memory_corpus():
    """Makes a corpus of documents, each a list of sentence lengths."""
    return MemoryCorpus


@pytest.fixture
def varied_documents():
    """Makes documents of 1 to 40 sentences of 1 to 30 tokens, always the same ones."""

    def make(count: int, seed: int = 0, longest: int = 30) -> list[list[int]]:
        generator = np.random.default_rng(seed)
        return [
            generator.integers(1, longest + 1, generator.integers(1, 41)).tolist()
            for _ in range(count)
        ]

    return make
