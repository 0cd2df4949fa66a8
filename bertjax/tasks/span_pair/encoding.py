"""Encode texts with two marked spans: the column `span_ids` marks the tokens of each span."""

import dataclasses

import numpy as np
from jaxtyping import Bool

from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.tasks import sequences
from bertjax.tasks.dataset import EncodingSpec
from bertjax.tasks.superglue.records import Examples


def encode(examples: Examples, spec: EncodingSpec, truncate: str = "longer") -> sequences.Pairs:
    """Tokenizes the one or two texts of each row and marks the tokens of its two spans.

    Args:
      examples: The rows.
      spec: The encoding: tokenizer and lengths.
      truncate: Which of two texts is truncated, a key of `sequences.TRUNCATIONS`.

    Raises:
      UserError: a span has no token within the maximum length, or `sequences.encode` raises.
    """
    tokenizer, texts = spec.tokenizer, examples.texts
    pairs = spec.encode(texts, truncate)
    inside = [
        [_token_masks(tokenizer, row.texts[number], number, row.spans) for row in examples.rows]
        for number in range(len(texts))
    ]
    sizes = [np.array([masks.shape[1] for masks in column], np.int64) for column in inside]
    budget = sequences.token_budget(tokenizer, len(texts), spec.max_seq_length)
    kept = sequences.kept_tokens(sizes, budget, truncate)
    template = SequenceTemplate.from_tokenizer(tokenizer, cls_last=spec.cls_last)
    span_ids = np.zeros(len(pairs.tokens), np.int32)
    for column, counts, begins in zip(inside, kept, template.segment_starts(kept), strict=True):
        starts = (pairs.starts + begins).tolist()
        for masks, start, count in zip(column, starts, counts.tolist(), strict=True):
            span_ids[start : start + count] = masks[0, :count] + 2 * masks[1, :count]
    _check(examples, pairs, span_ids)
    return dataclasses.replace(pairs, columns={**pairs.columns, "span_ids": span_ids})


def _token_masks(
    tokenizer: Tokenizer, text: str, number: int, spans: tuple[tuple[int, int, int], ...]
) -> Bool[np.ndarray, "2 t"]:
    """Returns for each span whether each token of this text overlaps it."""
    _, offsets = tokenizer.encode_with_offsets(text)
    begins, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    return np.stack([(at == number) & (begins < end) & (ends > begin) for at, begin, end in spans])


def _check(examples: Examples, pairs: sequences.Pairs, span_ids: np.ndarray) -> None:
    for bit in (1, 2):
        counts = np.add.reduceat((span_ids & bit) > 0, pairs.starts)
        missing = np.flatnonzero(counts == 0)
        if len(missing):
            row = examples.rows[missing[0]]
            number, begin, end = row.spans[bit - 1]
            raise UserError(
                f"{row.where}: span {row.texts[number][begin:end][:40]!r}: got no token within "
                "the maximum length, expected one or more; raise --config.data.max_seq_length, or "
                "fix the file"
            )
