"""Choosing what a permutation language model predicts, and in which order (Yang et al. 2019).

Every function takes one random key an example and works on the device, inside the jitted step.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from bertjax.layers.corruption import first

# Of numpy: an array of JAX would start the device as soon as this file is imported.
_FILLING, _NEVER = np.uint32(1 << 30), np.uint32(1 << 31)
"""Ranks from which on a token is in no span, and may not be chosen at all."""


def choose_spans(
    keys: Key[Array, "B"],
    maskable: Bool[Array, "B L"],
    word_starts: Bool[Array, "B L"],
    budget: Int[Array, "B"],
    limit: int,
    *,
    context: float,
    longest: int,
) -> tuple[Int[Array, "B P"], Float[Array, "B P"]]:
    """Chooses spans of 1 to `longest` words, each somewhere within a context of its own.

    A length n is drawn with probability proportional to 1/n, and the span lies at random within
    `context` times as many tokens as it has (section 3.1). Contexts follow each other from the
    first token on. Then exactly `budget` tokens are taken: spans in random order, the last one cut
    if need be, or single random tokens where spans are too few. The published code instead stops at
    the budget from the left, so that it predicts the ends of texts of long words less often.

    Returns:
      `limit` positions an example, and weights: 1 for the first `budget` of them, else 0.
    """
    length = maskable.shape[-1]
    shares = 1 / np.arange(1, longest + 1)
    shares = np.cumsum(shares / shares.sum())[:-1].astype(np.float32)

    def rank_one(key, maskable, starts):
        starts = starts | (jnp.arange(length) == 0)
        begun = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(starts)])
        start_of = jnp.full(length + longest + 1, length)
        at = jnp.where(starts, begun[:-1], length + longest + 1)
        start_of = start_of.at[at].set(jnp.arange(length), mode="drop")

        def span(cursor, draws):
            words = 1 + jnp.sum(draws[0] >= shares)
            left = (draws[1] * (context * words - words + 1)).astype(jnp.int32)
            word = begun[jnp.minimum(cursor + left, length)]
            begin, end = start_of[word], start_of[word + words]
            cursor = jnp.maximum(end, cursor + jnp.round(context * (end - begin)).astype(jnp.int32))
            return jnp.minimum(cursor, length), (begin, end)

        drawing, filling, ordering = jax.random.split(key, 3)
        draws = jax.random.uniform(drawing, (limit, 2))
        _, (begin, end) = lax.scan(span, jnp.int32(0), draws)
        begun_spans = jnp.zeros(length + 1, jnp.int32).at[begin].add(1)
        ended_spans = jnp.zeros(length + 1, jnp.int32).at[end].add(1)
        inside = jnp.cumsum(begun_spans - ended_spans)[:length] > 0
        number = jnp.clip(jnp.cumsum(begun_spans)[:length] - 1, 0, limit - 1)
        place = jax.random.permutation(ordering, limit).astype(jnp.uint32)
        in_span = place[number] * length + jnp.arange(length, dtype=jnp.uint32)
        alone = _FILLING + (jax.random.bits(filling, (length,), jnp.uint32) >> 2)
        return jnp.where(maskable, jnp.where(inside, in_span, alone), _NEVER)

    return first(jax.vmap(rank_one)(keys, maskable, word_starts), budget, limit)


def draw_order(
    keys: Key[Array, "B"],
    positions: Int[Array, "B P"],
    weights: Float[Array, "B P"],
    special: Bool[Array, "B L"],
) -> Int[Array, "B L"]:
    """A random order of the predicted tokens and the special ones; -1 for all others.

    Only the last part of a factorisation order is predicted (section 2.3), and what comes before
    may see itself whole. Special tokens take part in the order without being predicted, as in the
    published code: so they learn to gather predicted tokens as well.
    """
    length = special.shape[-1]
    at = jnp.where(weights > 0, positions, length)
    ordered = jax.vmap(lambda row, at: row.at[at].set(True, mode="drop"))(special, at)
    ranks = jax.vmap(lambda key: jax.random.permutation(key, length))(keys)
    return jnp.where(ordered, ranks.astype(jnp.int32), -1)
