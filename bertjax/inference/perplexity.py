"""Perplexity of a causal LM: sliding windows over documents.

Each token is predicted once, from as much of what comes before it as the model reads, but for a
stride: a window moves on by so many tokens, and only those that are new in it count.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from bertjax.corpus import encoding
from bertjax.errors import UserError
from bertjax.inference.language_model import LanguageModel, check_length


class Window(NamedTuple):
    """Tokens that are read, of which those from `new` on count."""

    ids: Sequence[int]
    new: int


@dataclasses.dataclass
class PerplexityResult:
    """What a model knows of a text.

    Attributes:
      nats: The sum of -log of the probability of every token.
      tokens: How many were predicted.
      hits: Of how many the most likely token was right.
      bytes: Of the text that was predicted, in UTF-8: a model whose corpus has no line breaks, nor
        spaces between sentences, is not given these for free.
      documents: How many there were.
      unknown: The number of predicted tokens that are unknown ([UNK]): the probability of one says
        nothing of the characters that it stands for.
    """

    nats: float = 0.0
    tokens: int = 0
    hits: int = 0
    bytes: int = 0
    documents: int = 0
    unknown: int = 0

    @property
    def perplexity(self) -> float:
        """The number of tokens that would be as hard to choose from."""
        return math.exp(self.nats / self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """The size to which the text can be compressed, if no token of it is unknown."""
        return self.nats / math.log(2) / self.bytes


def windows(ids: Sequence[int], length: int, stride: int) -> Iterator[Window]:
    """Cuts a document so that every token but the first is new in exactly one window."""
    end = 0
    while end < len(ids):
        start = max(0, (end + stride if end else length) - length)
        stop = min(start + length, len(ids))
        yield Window(ids[start:stop], max(end - start, 1))
        end = stop


def measure(
    model: LanguageModel,
    documents: Iterable[str],
    *,
    length: int = 0,
    stride: int = 0,
    batch_size: int = 8,
) -> PerplexityResult:
    """Reads documents and adds up how likely they were.

    A document begins with the end of the one before, where the tokenizer has such a token, so that
    its first token is predicted as well.

    Args:
      model: What is measured.
      documents: Texts.
      length: Tokens of a window; 0 for as many as the model learned from.
      stride: Tokens by which a window moves on; 0 for half of its length.
      batch_size: Windows at a time.

    Raises:
      UserError: the window is longer than the model reads, or the stride longer than the window;
        or nothing was there to predict.
    """
    length = length or int(model.learned)
    stride = stride or max(1, length // 2)
    check_length(model, length, "a window", "lower --length")
    if not 1 <= stride < length:
        raise UserError(f"stride={stride}: expected at least 1 and less than the window's {length}")
    knowledge = PerplexityResult()
    pieces = _pieces(model, documents, length, stride, knowledge)
    while group := list(itertools.islice(pieces, batch_size)):
        _add(model, group, length, batch_size, knowledge)
    if not knowledge.tokens:
        raise UserError("the input has no token that could be predicted: give a longer text")
    return knowledge


def _pieces(
    model: LanguageModel,
    documents: Iterable[str],
    length: int,
    stride: int,
    knowledge: PerplexityResult,
) -> Iterator[Window]:
    before = [] if model.end_id is None else [model.end_id]
    for document in documents:
        texts = _texts(model, document)
        ids = list(itertools.chain.from_iterable(model.tokenizer.encode_batch(texts)))
        knowledge.documents += 1
        knowledge.bytes += sum(len(text.encode()) for text in texts)
        if not before:
            knowledge.bytes -= len(_first_token(model, texts).encode())
        yield from windows(before + ids, length, stride)


def _first_token(model: LanguageModel, texts: Sequence[str]) -> str:
    """A document up to the end of its first token, which nothing predicts."""
    for text in texts:
        if spans := model.tokenizer.encode_with_offsets(text)[1]:
            return text[: spans[0][1]]
    return ""


def _texts(model: LanguageModel, document: str) -> list[str]:
    """A document as the model's own corpus has it: sentences, without line breaks.

    An imported model reads it as it is.
    """
    if "imported" in model.config:
        return [document]
    return list(encoding.sentence_texts(document, encoding.joint(model.tokenizer)))


def _add(
    model: LanguageModel,
    group: list[Window],
    length: int,
    batch_size: int,
    knowledge: PerplexityResult,
) -> None:
    ids, there = padded([window.ids for window in group], length, batch_size)
    log_probs, hits = map(np.asarray, model.predictions(model.params, ids, there))
    for row, window in enumerate(group):
        counted = slice(window.new - 1, len(window.ids) - 1)
        knowledge.nats -= float(log_probs[row, counted].sum(dtype=np.float64))
        knowledge.hits += int(hits[row, counted].sum())
        knowledge.tokens += len(window.ids) - window.new
        knowledge.unknown += list(window.ids[window.new :]).count(model.tokenizer.unk_id)


def padded(
    rows: Sequence[Sequence[int]], length: int, batch_size: int
) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Tokens and which of them are there, always of one shape."""
    ids = np.zeros((batch_size, length), np.int32)
    there = np.zeros((batch_size, length), bool)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        there[number, : len(row)] = True
    return jnp.asarray(ids), jnp.asarray(there)
