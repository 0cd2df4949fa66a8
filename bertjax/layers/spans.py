"""Sample spans of a text, each replaced by one token (Raffel et al. 2020; Lewis et al. 2020).

Every function takes one random key per example and runs inside the jitted step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key


class Text(NamedTuple):
    """Start and size of each row's text, without special tokens at its beginning and end."""

    begin: Int[Array, " B"]
    size: Int[Array, " B"]


class Spans(NamedTuple):
    """Spans in the order of the text, never adjacent.

    Attributes:
      begin: Position of the first token; of an empty span, the position that it precedes.
      size: Number of tokens.
      mask: False for padding.
    """

    begin: Int[Array, "B S"]
    size: Int[Array, "B S"]
    mask: Bool[Array, "B S"]


def find_text(
    ids: Int[Array, "B L"], attention_mask: Bool[Array, "B L"], special_ids: tuple[int, ...]
) -> Text:
    """Finds the text of each row; special tokens within it, such as separators, are part of it."""
    special = jnp.isin(ids, jnp.asarray(special_ids, ids.dtype))
    length = attention_mask.sum(axis=1)
    last = jnp.take_along_axis(special, jnp.maximum(length - 1, 0)[:, None], axis=1)[:, 0]
    begin = special[:, 0].astype(jnp.int32)
    return Text(begin, jnp.maximum(length - begin - last, 0).astype(jnp.int32))


def round_share(size: Int[Array, " B"], share: float, max_length: int) -> Int[Array, " B"]:
    """Rounds `share` of each size, to at least 1 and at most the size."""
    # In float64, in which 0.15 * 190 is a tie, unlike in float32.
    counts = np.round(share * np.arange(max_length + 1)).clip(1)
    return jnp.minimum(jnp.asarray(counts, jnp.int32)[size], size)


def random_spans(
    keys: Key[Array, "B"], text: Text, max_length: int, *, share: float, mean: float
) -> Spans:
    """Samples spans as T5 does (`random_spans_noise_mask`).

    Exactly `share` of the text is in spans of `mean` tokens on average; all partitions of the
    tokens in spans, and of those between, are equally likely. The text begins outside a span and
    ends with one. A text of one token has none.
    """
    covered = jnp.minimum(round_share(text.size, share, max_length), text.size - 1)
    covered = jnp.maximum(covered, 0)
    count = jnp.maximum(jnp.round(covered / mean).astype(jnp.int32), 1)
    count = jnp.minimum(count, jnp.minimum(covered, text.size - covered))
    most = max_spans(max_length, share, mean)
    first, second = jax.vmap(jax.random.split, out_axes=1)(keys)
    sizes = _partition(first, covered, count, max_length)[:, :most]
    gaps = _partition(second, text.size - covered, count, max_length)[:, :most]
    begin = text.begin[:, None] + jnp.cumsum(gaps + sizes, axis=1) - sizes
    return Spans(begin, sizes, jnp.arange(most) < count[:, None])


def max_spans(max_length: int, share: float, mean: float) -> int:
    """Maximum number of spans that `random_spans` samples in a text of this length."""
    return max(round(np.round(share * max_length) / mean), 1)


def poisson_spans(
    keys: Key[Array, "B"], text: Text, max_length: int, *, share: float, mean: float
) -> Spans:
    """Samples spans of Poisson lengths at random positions, as BART does (Lewis et al. 2020, 2.2).

    Exactly `share` of the text is in spans: the last one is truncated. Spans may be empty, but
    there are never more spans than tokens in them. All positions are equally likely.
    """
    covered = round_share(text.size, share, max_length)
    gaps = text.size - covered + 1
    limit = jnp.minimum(covered, gaps)[:, None]
    most = max(round(share * max_length), 1)
    probabilities = np.exp(-mean) * np.cumprod([1.0, *(mean / np.arange(1, most))])
    limits = np.cumsum(probabilities).astype(np.float32)
    size_keys, place_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (most,)))(size_keys)
    ends = jnp.cumsum(jnp.sum(uniform[..., None] >= limits, axis=-1), axis=1)
    number, total = jnp.arange(most), covered[:, None]
    ends = jnp.where(number >= limit - 1, total, jnp.minimum(ends, total))
    before = jnp.pad(ends, ((0, 0), (1, 0)))[:, :-1]
    mask = (before < total) & (number < limit)
    sizes = jnp.where(mask, ends - before, 0)
    places = _sample_positions(place_keys, gaps, mask.sum(axis=1), max_length + 1)
    places = jnp.sort(jnp.where(places, jnp.arange(max_length + 1), max_length + 1), axis=1)[
        :, :most
    ]
    begin = text.begin[:, None] + places + jnp.cumsum(sizes, axis=1) - sizes
    return Spans(begin, sizes, mask)


def replace_spans(
    ids: Int[Array, "B L"],
    attention_mask: Bool[Array, "B L"],
    spans: Spans,
    tokens: Int[Array, "B S"],
    length: int,
    pad_id: int,
) -> tuple[Int[Array, "B R"], Bool[Array, "B R"]]:
    """Replaces each span by one token; returns `length` tokens and their padding mask."""
    keep = attention_mask & ~_inside(spans, ids.shape[1])
    return _merge(ids, keep, spans, tokens, length, pad_id)


def gather_spans(
    ids: Int[Array, "B L"],
    spans: Spans,
    tokens: Int[Array, "B S"],
    end_id: int,
    length: int,
    pad_id: int,
) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
    """Concatenates the spans, each after its token, and an end token; also the padding mask."""
    row, mask = _merge(ids, _inside(spans, ids.shape[1]), spans, tokens, length, pad_id)
    size = mask.sum(axis=1, keepdims=True)
    row = jnp.where(jnp.arange(length) == size, end_id, row)
    return row, jnp.arange(length) <= size


def _merge(ids, keep, spans, tokens, length, pad_id):
    """Selects tokens, and inserts the token of each span where the span begins."""

    def one(ids, keep, begin, mask, tokens):
        at = jnp.where(mask, begin, len(ids))
        inserted = jnp.cumsum(jnp.zeros(len(ids) + 1, jnp.int32).at[at].add(mask))[:-1]
        before = jnp.pad(jnp.cumsum(keep), (1, 0))
        to = jnp.where(keep, before[:-1] + inserted, length)
        to_token = jnp.where(mask, before[begin] + jnp.arange(len(begin)), length)
        row = jnp.full(length, pad_id, ids.dtype)
        row = row.at[to].set(ids, mode="drop").at[to_token].set(tokens, mode="drop")
        return row, jnp.arange(length) < before[-1] + mask.sum()

    return jax.vmap(one)(ids, keep, spans.begin, spans.mask, tokens)


def _inside(spans: Spans, length: int) -> Bool[Array, "B L"]:
    """Which tokens are in a span."""

    def one(begin, size, mask):
        change = jnp.zeros(length + 1, jnp.int32)
        change = change.at[begin].add(mask, mode="drop")
        change = change.at[begin + size].add(-mask.astype(jnp.int32), mode="drop")
        return jnp.cumsum(change)[:-1] > 0

    return jax.vmap(one)(*spans)


def _partition(
    keys: Key[Array, "B"], total: Int[Array, " B"], count: Int[Array, " B"], max_length: int
) -> Int[Array, "B L"]:
    """Samples a partition of `total` items into `count` non-empty parts; returns their sizes."""
    cuts = _sample_positions(keys, total - 1, count - 1, max_length)
    number = jnp.cumsum(jnp.pad(cuts, ((0, 0), (1, 0)))[:, :-1], axis=1)
    mask = jnp.arange(max_length) < total[:, None]
    return jax.vmap(lambda at, n: jnp.zeros(max_length, jnp.int32).at[at].add(n))(number, mask)


def _sample_positions(
    keys: Key[Array, "B"], size: Int[Array, " B"], count: Int[Array, " B"], max_length: int
) -> Bool[Array, "B L"]:
    """Samples `count` of the first `size` positions without replacement."""
    scores = jax.vmap(lambda key: jax.random.bits(key, (max_length,), jnp.uint32))(keys)
    ranking = jnp.where(jnp.arange(max_length) < size[:, None], scores >> 1, jnp.uint32(1 << 31))
    order = jnp.argsort(jnp.argsort(ranking, axis=1), axis=1)
    return order < count[:, None]
