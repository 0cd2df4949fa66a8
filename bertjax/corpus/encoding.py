"""Encode documents as records: split sentences, tokenize, lay out token ids in bytes.

Sentences are tokenized one by one, so that their lengths are known and no token spans two. If a
tokenizer encodes the space before a word (byte-level BPE), every sentence but the first of its line
keeps that space: the ids equal those of the whole line.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from jaxtyping import Int

from bertjax.corpus.reader import INDEX_DTYPE, MAX_RECORD_TOKENS
from bertjax.corpus.sentences import paragraphs
from bertjax.tokenizers import tokenizer as tokenizers


def to_records(
    tokens: Int[np.ndarray, " T"], lengths: Int[np.ndarray, " S"], sizes: Int[np.ndarray, " n"]
) -> tuple[list[bytes], np.ndarray]:
    """Lays documents out as records.

    Args:
      tokens: The ids of all documents, one after another, in the dtype to be stored.
      lengths: How many tokens each sentence has; none is empty.
      sizes: How many sentences each document has; one of none has no record.

    Returns:
      The records and their rows of the index (`INDEX_DTYPE`). A sentence longer than a record is
      cut, and counts as several.
    """
    lengths, sizes = _cut_longest(lengths, sizes)
    stored_lengths, ends = lengths.astype(tokens.dtype), np.cumsum(lengths)
    records, rows, start, first = [], [], 0, 0
    for size in sizes.tolist():
        last, starts_document = first + size, True
        while first < last:
            fitting = int(np.searchsorted(ends, start + MAX_RECORD_TOKENS, side="right"))
            stop = min(fitting, last)
            end = int(ends[stop - 1])
            records.append(tokens[start:end].tobytes() + stored_lengths[first:stop].tobytes())
            rows.append((end - start, stop - first, starts_document))
            start, first, starts_document = end, stop, False
    return records, np.array(rows, INDEX_DTYPE)


def _cut_longest(lengths: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parts sentences that no record can hold into pieces that fill a record, and a rest."""
    pieces = -(-lengths // MAX_RECORD_TOKENS)
    if not (pieces > 1).any():
        return lengths, sizes
    rests = lengths - (pieces - 1) * MAX_RECORD_TOKENS
    document = np.repeat(np.repeat(np.arange(sizes.size), sizes), pieces)
    lengths = np.full(int(pieces.sum()), MAX_RECORD_TOKENS)
    lengths[np.cumsum(pieces) - 1] = rests
    return lengths, np.bincount(document, minlength=sizes.size)


LONGEST_SENTENCE = 1 << 16
"""Characters. Records cut long sentences anyway; tokenizing them whole would take much memory."""

_TEXTS_AT_ONCE = 4096


class Encoder(Protocol):
    """The part of a tokenizer that is needed here."""

    vocab_size: int

    def encode_batch(self, texts: list[str]) -> list[list[int]]: ...


@dataclasses.dataclass(frozen=True)
class Packed:
    """Documents as records.

    Attributes:
      records: What is stored, one after another.
      index: A row of `records.INDEX_DTYPE` for each.
      token_ids: The different ids that occur.
      token_counts: How often each of them does.
      documents: How many documents have tokens; the others are dropped.
      characters: How many characters those have.
    """

    records: list[bytes]
    index: np.ndarray
    token_ids: np.ndarray
    token_counts: np.ndarray
    documents: int
    characters: int


class DocumentEncoder:
    """Turns lists of documents into `Packed` ones.

    Args:
      tokenizer_path: A tokenizer's folder or file.
      whole_lines: Whether a line is one sentence, whatever is in it, as in pairs.
    """

    def __init__(self, tokenizer_path: str, whole_lines: bool = False):
        self._tokenizer: Encoder = tokenizers.load(tokenizer_path)
        self._dtype = id_dtype(self._tokenizer.vocab_size)
        self._whole_lines = whole_lines
        self._joint = joint(self._tokenizer)

    def __call__(self, documents: list[str]) -> Packed:
        texts = [list(self._sentences(document)) for document in documents]
        ids = self._encode(list(itertools.chain.from_iterable(texts)))
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        tokens = np.fromiter(itertools.chain.from_iterable(ids), self._dtype, int(lengths.sum()))
        document = np.repeat(np.arange(len(texts)), [len(sentences) for sentences in texts])
        sizes = np.bincount(document[lengths > 0], minlength=len(texts))
        records, index = to_records(tokens, lengths[lengths > 0], sizes)
        counts = np.bincount(tokens, minlength=1)
        return Packed(
            records=records,
            index=index,
            token_ids=np.flatnonzero(counts),
            token_counts=counts[counts > 0],
            documents=int((sizes > 0).sum()),
            characters=sum(len(documents[number]) for number in np.flatnonzero(sizes)),
        )

    def _sentences(self, document: str) -> Iterable[str]:
        return document.split("\n") if self._whole_lines else sentence_texts(document, self._joint)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        ids = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            ids += self._tokenizer.encode_batch(texts[start : start + _TEXTS_AT_ONCE])
        return ids


def sentence_texts(document: str, joint: str) -> Iterator[str]:
    """The sentences of a document; all but the first of a line begin with `joint`."""
    for line in paragraphs(document):
        for number, sentence in enumerate(line):
            sentence = joint + sentence if number else sentence
            if len(sentence) <= LONGEST_SENTENCE:
                yield sentence
            else:
                yield from _pieces(sentence)


def joint(tokenizer: Encoder) -> str:
    """What stands between the sentences of a line."""
    return " " if sees_spaces(tokenizer) else ""


def id_dtype(vocab_size: int) -> np.dtype:
    """The smallest dtype that records store ids of a vocabulary in."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def sees_spaces(tokenizer: Encoder) -> bool:
    """Whether a word behind a space has other ids than the word alone."""
    joined, first, second, spaced = tokenizer.encode_batch(["a b", "a", "b", " b"])
    return joined != first + second and joined == first + spaced


def _pieces(sentence: str) -> Iterator[str]:
    """Parts a sentence before spaces, or anywhere where there are none."""
    start = 0
    while len(sentence) - start > LONGEST_SENTENCE:
        cut = sentence.rfind(" ", start + 1, start + LONGEST_SENTENCE)
        cut = cut if cut > 0 else start + LONGEST_SENTENCE
        yield sentence[start:cut]
        start = cut
    yield sentence[start:]
