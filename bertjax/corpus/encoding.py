"""Encode documents as records: split into sentences, tokenize, store token ids as bytes.

Sentences are tokenized separately, so that their lengths are known and no token spans two. Their
ids equal those of the whole line, unless one of its tokens spans two sentences: `SentenceEncoder`.
The record format is described in `corpus/reader.py`.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from bertjax.corpus.reader import INDEX_DTYPE, MAX_RECORD_TOKENS
from bertjax.corpus.sentences import split_line
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.tokenizers import tokenizer as tokenizers


def to_records(
    tokens: Int[np.ndarray, " T"], lengths: Int[np.ndarray, " S"], sizes: Int[np.ndarray, " n"]
) -> tuple[list[bytes], np.ndarray]:
    """Convert documents to records.

    Args:
      tokens: Token ids of all documents, concatenated, in the dtype to be stored.
      lengths: Number of tokens of each sentence, at least 1.
      sizes: Number of sentences of each document; a document without sentences has no record.

    Returns:
      The records, and their rows of the index (`INDEX_DTYPE`). A sentence longer than a record is
      split, and counted as several.
    """
    lengths, sizes = _split_longest(lengths, sizes)
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


def _split_longest(lengths: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split sentences longer than a record into pieces that fill a record, and a remainder."""
    pieces = -(-lengths // MAX_RECORD_TOKENS)
    if not (pieces > 1).any():
        return lengths, sizes
    rests = lengths - (pieces - 1) * MAX_RECORD_TOKENS
    document = np.repeat(np.repeat(np.arange(sizes.size), sizes), pieces)
    lengths = np.full(int(pieces.sum()), MAX_RECORD_TOKENS)
    lengths[np.cumsum(pieces) - 1] = rests
    return lengths, np.bincount(document, minlength=sizes.size)


MAX_SENTENCE_CHARACTERS = 1 << 16
"""Longer sentences are split before tokenization, to bound its memory."""

_TEXTS_PER_CALL = 4096
_SPACE = "\u2581"
"""The space in pieces of SentencePiece."""


@dataclasses.dataclass(frozen=True)
class EncodedDocuments:
    """Records of some documents, with their index and counts.

    Attributes:
      records: Bytes of the records in order.
      index: Rows of the index (`INDEX_DTYPE`), one per record.
      token_ids: Distinct token ids in the records.
      token_counts: Number of occurrences of each.
      documents: Number of documents with tokens; others have no record.
      characters: Number of characters of these documents.
    """

    records: list[bytes]
    index: np.ndarray
    token_ids: np.ndarray
    token_counts: np.ndarray
    documents: int
    characters: int


class DocumentEncoder:
    """A function that encodes lists of documents as records.

    Args:
      tokenizer_path: A tokenizer's folder or file.
      whole_lines: Whether every line is one sentence, as for pairs; otherwise lines are split into
        sentences.
    """

    def __init__(self, tokenizer_path: str, whole_lines: bool = False):
        tokenizer = tokenizers.load(tokenizer_path)
        self._dtype = id_dtype(tokenizer.vocab_size)
        self._whole_lines = whole_lines
        self._encoder = SentenceEncoder(tokenizer)

    def __call__(self, documents: list[str]) -> EncodedDocuments:
        texts = [self._sentences(document) for document in documents]
        ids = self._encode(list(itertools.chain.from_iterable(texts)))
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        tokens = np.fromiter(itertools.chain.from_iterable(ids), self._dtype, int(lengths.sum()))
        document = np.repeat(np.arange(len(texts)), [len(sentences) for sentences in texts])
        sizes = np.bincount(document[lengths > 0], minlength=len(texts))
        records, index = to_records(tokens, lengths[lengths > 0], sizes)
        counts = np.bincount(tokens, minlength=1)
        return EncodedDocuments(
            records=records,
            index=index,
            token_ids=np.flatnonzero(counts),
            token_counts=counts[counts > 0],
            documents=int((sizes > 0).sum()),
            characters=sum(len(documents[number]) for number in np.flatnonzero(sizes)),
        )

    def _sentences(self, document: str) -> list["Sentence"]:
        if self._whole_lines:
            return [Sentence(line) for line in document.split("\n")]
        return list(self._encoder.split(document))

    def _encode(self, sentences: list["Sentence"]) -> list[list[int]]:
        ids = []
        for start in range(0, len(sentences), _TEXTS_PER_CALL):
            ids += self._encoder.encode(sentences[start : start + _TEXTS_PER_CALL])
        return ids


class Sentence(NamedTuple):
    """A sentence of a document, or a part of a long one.

    Attributes:
      text: The text, after a space if there is one and the tokenizer encodes it.
      context: A text that is encoded with it, before it, and whose tokens are left out.
    """

    text: str
    context: str = ""


class SentenceEncoder:
    """Splits documents into sentences, and encodes each as in its line.

    A sentence follows white space, or a full-width mark such as those of Chinese. Tokenizers
    differ in the white space: byte-level BPE encodes a space that precedes a sentence, so that the
    text has it; SentencePiece puts one before every text, so that a sentence without white space
    before it is encoded after a character that cannot be part of a longer token.

    Args:
      tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._separator = " " if encodes_spaces(tokenizer) else ""
        self._context = find_context(tokenizer)
        self._context_size = len(tokenizer.encode_batch([self._context])[0])

    def split(self, document: str) -> Iterator[Sentence]:
        """Yield the sentences of a document."""
        for line in document.splitlines():
            line, end = line.strip(), 0
            for sentence in split_line(line):
                start = line.index(sentence, end)
                is_first, has_space, end = not end, start > end, start + len(sentence)
                context = "" if has_space or is_first else self._context
                text = self._separator + sentence if has_space else sentence
                for part in _split_at_spaces(text):
                    yield Sentence(part, context)
                    context = self._context

    def encode(self, sentences: Sequence[Sentence]) -> list[list[int]]:
        """Encode each sentence to ids."""
        ids = self._tokenizer.encode_batch([each.context + each.text for each in sentences])
        return [
            own[self._context_size :] if each.context else own
            for own, each in zip(ids, sentences, strict=True)
        ]


def find_context(tokenizer: Tokenizer) -> str:
    """Return a character after which a text is encoded without a space before it.

    No token has it and characters after it, so that the ids of the text do not depend on it.

    Returns:
      A character of the vocabulary; "" for tokenizers that put no space before a text, or a
      vocabulary without such a character.
    """
    (example,) = tokenizer.encode_batch(["a"])
    if not "".join(tokenizer.ids_to_pieces(example)).startswith(_SPACE):
        return ""
    pieces = []
    for identity in range(tokenizer.vocab_size):
        with contextlib.suppress(UserError):  # ids without a piece
            pieces.append(tokenizer.ids_to_pieces([identity])[0].removeprefix(_SPACE))
    first_of_longer = {piece[0] for piece in pieces if len(piece) > 1}
    for piece in pieces:
        if len(piece) == 1 and piece not in first_of_longer:
            once, twice = tokenizer.encode_batch([piece, 2 * piece])
            if twice[:-1] == once and tokenizer.unk_id not in twice:
                return piece
    return ""


def id_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype in which records store the token ids of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def encodes_spaces(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer encodes the space before a word, as byte-level BPE does."""
    joined, first, second, spaced = tokenizer.encode_batch(["a b", "a", "b", " b"])
    return joined != first + second and joined == first + spaced


def _split_at_spaces(sentence: str) -> Iterator[str]:
    """Split a long sentence before spaces, or between any characters if there are none.

    Others are yielded as they are.
    """
    start = 0
    while len(sentence) - start > MAX_SENTENCE_CHARACTERS:
        cut = sentence.rfind(" ", start + 1, start + MAX_SENTENCE_CHARACTERS)
        cut = cut if cut > 0 else start + MAX_SENTENCE_CHARACTERS
        yield sentence[start:cut]
        start = cut
    yield sentence[start:]
