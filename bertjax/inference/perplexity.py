"""Perplexity and bits per byte of a causal LM, by sliding windows over documents.

Windows overlap by all but `stride` tokens, and only the tokens that are new in a window are scored:
each token is predicted once, with at least `length - stride` tokens of context where the document
has them.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from bertjax.corpus import encoding
from bertjax.errors import UserError
from bertjax.inference.language_model import LanguageModel, check_length


class Window(NamedTuple):
    """Input of the model.

    Attributes:
      ids: Tokens.
      first: Index of the first token that is scored.
    """

    ids: Sequence[int]
    first: int


@dataclasses.dataclass
class PerplexityResult:
    """Sums of a perplexity evaluation.

    Attributes:
      nats: Sum of the negative log probabilities of all predicted tokens.
      num_tokens: Number of predicted tokens.
      num_correct: Number of predicted tokens that were the most likely one.
      num_bytes: UTF-8 bytes of the predicted text. Line breaks and spaces between sentences are not
        counted for a model whose corpus does not have them.
      num_documents: Number of documents.
      num_unknown: Number of predicted tokens that are [UNK], whose probability does not include
        the characters of the word.
    """

    nats: float = 0.0
    num_tokens: int = 0
    num_correct: int = 0
    num_bytes: int = 0
    num_documents: int = 0
    num_unknown: int = 0

    @property
    def perplexity(self) -> float:
        """Exponential of the mean negative log probability per token."""
        return math.exp(self.nats / self.num_tokens)

    @property
    def bits_per_byte(self) -> float:
        """Negative log2 probability per UTF-8 byte; comparable between tokenizers without [UNK]."""
        return self.nats / math.log(2) / self.num_bytes


def split_windows(ids: Sequence[int], length: int, stride: int) -> Iterator[Window]:
    """Splits a document into windows that score every token but the first exactly once."""
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
    """Evaluates the perplexity of a language model on documents.

    The end-of-text token, if the tokenizer has one, is put before each document, so that the first
    token of the document is predicted too.

    Args:
      model: The language model.
      documents: Texts.
      length: Number of tokens per window; 0 for the sequence length of pretraining.
      stride: Number of tokens between windows; 0 for half of `length`.
      batch_size: Number of windows per batch.

    Raises:
      UserError: `length` exceeds the model's positions, `stride` is not less than `length`, or
        there is no token to predict.
    """
    length = length or int(model.train_length)
    stride = stride or max(1, length // 2)
    check_length(model, length, "a window", "lower max_length")
    if not 1 <= stride < length:
        raise UserError(
            f"stride: got {stride}, expected at least 1 and less than the window length {length}"
        )
    result = PerplexityResult()
    windows = _encode_windows(model, documents, length, stride, result)
    while group := list(itertools.islice(windows, batch_size)):
        _score_windows(model, group, length, batch_size, result)
    if not result.num_tokens:
        raise UserError("the input has no token to predict; pass a longer text")
    return result


def _encode_windows(
    model: LanguageModel,
    documents: Iterable[str],
    length: int,
    stride: int,
    result: PerplexityResult,
) -> Iterator[Window]:
    """Yields the windows of all documents, and counts documents and bytes in `result`."""
    start = [] if model.end_id is None else [model.end_id]
    encoder = encoding.SentenceEncoder(model.tokenizer)
    for document in documents:
        sentences = _split_document(model, encoder, document)
        texts = [sentence.text for sentence in sentences]
        ids = list(itertools.chain.from_iterable(encoder.encode(sentences)))
        result.num_documents += 1
        result.num_bytes += sum(len(text.encode()) for text in texts)
        if not start:
            result.num_bytes -= len(_first_token(model, texts).encode())
        yield from split_windows(start + ids, length, stride)


def _first_token(model: LanguageModel, texts: Sequence[str]) -> str:
    """Returns the text of the first token, which is not predicted without an end-of-text token."""
    for text in texts:
        if spans := model.tokenizer.encode_with_offsets(text)[1]:
            return text[: spans[0][1]]
    return ""


def _split_document(
    model: LanguageModel, encoder: encoding.SentenceEncoder, document: str
) -> list[encoding.Sentence]:
    """Splits a document into sentences as `corpus/encoding.py` does, without line breaks.

    The document is not changed for an imported model.
    """
    if "imported" in model.config:
        return [encoding.Sentence(document)]
    return list(encoder.split(document))


def _score_windows(
    model: LanguageModel,
    group: list[Window],
    length: int,
    batch_size: int,
    result: PerplexityResult,
) -> None:
    ids, mask = pad_right([window.ids for window in group], length, batch_size)
    log_probs, is_correct = map(np.asarray, model.score_tokens(model.params, ids, mask))
    for row, window in enumerate(group):
        scored = slice(window.first - 1, len(window.ids) - 1)
        result.nats -= float(log_probs[row, scored].sum(dtype=np.float64))
        result.num_correct += int(is_correct[row, scored].sum())
        result.num_tokens += len(window.ids) - window.first
        result.num_unknown += list(window.ids[window.first :]).count(model.tokenizer.unk_id)


def pad_right(
    rows: Sequence[Sequence[int]], length: int, batch_size: int
) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]:
    """Pads token ids to a batch [batch_size length], and returns its mask, False at padding."""
    ids = np.zeros((batch_size, length), np.int32)
    mask = np.zeros((batch_size, length), bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = True
    return jnp.asarray(ids), jnp.asarray(mask)
