"""Sample spans of a text, each replaced by one token (Raffel et al. 2020; Lewis et al. 2020).

Every function takes one random key per example and runs inside the jitted step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key


class Text(NamedTuple):
    """Bounds of each row's text, without a special token at its beginning and one at its end."""

    begin: Int[Array, " B"]
    size: Int[Array, " B"]


class Spans(NamedTuple):
    """Spans in the order of the text, never adjacent.

    Attributes:
      begin: Position of the first token; of an empty span, the position that it precedes.
      size: Number of tokens.
      there: False for padding.
    """

    begin: Int[Array, "B S"]
    size: Int[Array, "B S"]
    there: Bool[Array, "B S"]


def text_of(
    ids: Int[Array, "B L"], there: Bool[Array, "B L"], special_ids: tuple[int, ...]
) -> Text:
    """Finds the text of each row; special tokens within it, such as separators, are part of it."""
    special = jnp.isin(ids, jnp.asarray(special_ids, ids.dtype))
    length = there.sum(axis=1)
    last = jnp.take_along_axis(special, jnp.maximum(length - 1, 0)[:, None], axis=1)[:, 0]
    begin = special[:, 0].astype(jnp.int32)
    return Text(begin, jnp.maximum(length - begin - last, 0).astype(jnp.int32))


def share_of(size: Int[Array, " B"], share: float, max_length: int) -> Int[Array, " B"]:
    """`share` of each size, rounded, at least 1 and at most all of it."""
    # In float64: 0.15 * 190 is a tie there, and none in float32.
    wanted = np.round(share * np.arange(max_length + 1)).clip(1)
    return jnp.minimum(jnp.asarray(wanted, jnp.int32)[size], size)


def random_spans(
    keys: Key[Array, "B"], text: Text, max_length: int, *, share: float, mean: float
) -> Spans:
    """Samples spans as T5 does (`random_spans_noise_mask`).

    Exactly `share` of the text is in spans of `mean` tokens on average; all partitions of the
    tokens in spans, and of those between, are equally likely. The text begins outside a span and
    ends with one. A text of one token has none.
    """
    covered = jnp.minimum(share_of(text.size, share, max_length), text.size - 1)
    covered = jnp.maximum(covered, 0)
    count = jnp.maximum(jnp.round(covered / mean).astype(jnp.int32), 1)
    count = jnp.minimum(count, jnp.minimum(covered, text.size - covered))
    most = most_spans(max_length, share, mean)
    first, second = jax.vmap(jax.random.split, out_axes=1)(keys)
    sizes = _parts(first, covered, count, max_length)[:, :most]
    gaps = _parts(second, text.size - covered, count, max_length)[:, :most]
    begin = text.begin[:, None] + jnp.cumsum(gaps + sizes, axis=1) - sizes
    return Spans(begin, sizes, jnp.arange(most) < count[:, None])


def most_spans(max_length: int, share: float, mean: float) -> int:
    """Number of spans that `random_spans` samples in a text of this length."""
    return max(round(np.round(share * max_length) / mean), 1)


def poisson_spans(
    keys: Key[Array, "B"], text: Text, max_length: int, *, share: float, mean: float
) -> Spans:
    """Samples spans of Poisson lengths at random positions, as BART does (Lewis et al. 2020, 2.2).

    Exactly `share` of the text is in spans: the last one is truncated. Spans may be empty, but
    there are never more spans than tokens in them. All positions are equally likely.
    """
    covered = share_of(text.size, share, max_length)
    gaps = text.size - covered + 1
    limit = jnp.minimum(covered, gaps)[:, None]
    most = max(round(share * max_length), 1)
    chances = np.exp(-mean) * np.cumprod([1.0, *(mean / np.arange(1, most))])
    limits = np.cumsum(chances).astype(np.float32)
    drawing, placing = jax.vmap(jax.random.split, out_axes=1)(keys)
    draws = jax.vmap(lambda key: jax.random.uniform(key, (most,)))(drawing)
    ends = jnp.cumsum(jnp.sum(draws[..., None] >= limits, axis=-1), axis=1)
    number, total = jnp.arange(most), covered[:, None]
    ends = jnp.where(number >= limit - 1, total, jnp.minimum(ends, total))
    before = jnp.pad(ends, ((0, 0), (1, 0)))[:, :-1]
    there = (before < total) & (number < limit)
    sizes = jnp.where(there, ends - before, 0)
    places = _choose(placing, gaps, there.sum(axis=1), max_length + 1)
    places = jnp.sort(jnp.where(places, jnp.arange(max_length + 1), max_length + 1), axis=1)[
        :, :most
    ]
    begin = text.begin[:, None] + places + jnp.cumsum(sizes, axis=1) - sizes
    return Spans(begin, sizes, there)


def replace_spans(
    ids: Int[Array, "B L"],
    there: Bool[Array, "B L"],
    spans: Spans,
    tokens: Int[Array, "B S"],
    length: int,
    pad_id: int,
) -> tuple[Int[Array, "B R"], Bool[Array, "B R"]]:
    """Replaces each span by one token; returns `length` tokens and their padding mask."""
    kept = there & ~_inside(spans, ids.shape[1])
    return _merged(ids, kept, spans, tokens, length, pad_id)


def gather_spans(
    ids: Int[Array, "B L"],
    spans: Spans,
    tokens: Int[Array, "B S"],
    end_id: int,
    length: int,
    pad_id: int,
) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
    """Concatenates the spans, each after its token, and an end token; also the padding mask."""
    row, mask = _merged(ids, _inside(spans, ids.shape[1]), spans, tokens, length, pad_id)
    size = mask.sum(axis=1, keepdims=True)
    row = jnp.where(jnp.arange(length) == size, end_id, row)
    return row, jnp.arange(length) <= size


def _merged(ids, kept, spans, tokens, length, pad_id):
    """The kept tokens, with the token of each span inserted where the span begins."""

    def one(ids, kept, begin, there, tokens):
        at = jnp.where(there, begin, len(ids))
        begun = jnp.cumsum(jnp.zeros(len(ids) + 1, jnp.int32).at[at].add(there))[:-1]
        before = jnp.pad(jnp.cumsum(kept), (1, 0))
        to = jnp.where(kept, before[:-1] + begun, length)
        to_token = jnp.where(there, before[begin] + jnp.arange(len(begin)), length)
        row = jnp.full(length, pad_id, ids.dtype)
        row = row.at[to].set(ids, mode="drop").at[to_token].set(tokens, mode="drop")
        return row, jnp.arange(length) < before[-1] + there.sum()

    return jax.vmap(one)(ids, kept, spans.begin, spans.there, tokens)


def _inside(spans: Spans, length: int) -> Bool[Array, "B L"]:
    """Which tokens are in a span."""

    def one(begin, size, there):
        change = jnp.zeros(length + 1, jnp.int32)
        change = change.at[begin].add(there, mode="drop")
        change = change.at[begin + size].add(-there.astype(jnp.int32), mode="drop")
        return jnp.cumsum(change)[:-1] > 0

    return jax.vmap(one)(*spans)


def _parts(
    keys: Key[Array, "B"], total: Int[Array, " B"], count: Int[Array, " B"], max_length: int
) -> Int[Array, "B L"]:
    """Samples a partition of `total` items into `count` non-empty parts; returns their sizes."""
    cuts = _choose(keys, total - 1, count - 1, max_length)
    number = jnp.cumsum(jnp.pad(cuts, ((0, 0), (1, 0)))[:, :-1], axis=1)
    there = jnp.arange(max_length) < total[:, None]
    return jax.vmap(lambda at, n: jnp.zeros(max_length, jnp.int32).at[at].add(n))(number, there)


def _choose(
    keys: Key[Array, "B"], size: Int[Array, " B"], count: Int[Array, " B"], max_length: int
) -> Bool[Array, "B L"]:
    """Samples `count` of the first `size` positions without replacement."""
    scores = jax.vmap(lambda key: jax.random.bits(key, (max_length,), jnp.uint32))(keys)
    ranking = jnp.where(jnp.arange(max_length) < size[:, None], scores >> 1, jnp.uint32(1 << 31))
    order = jnp.argsort(jnp.argsort(ranking, axis=1), axis=1)
    return order < count[:, None]
