"""N-grams and spans: consecutive words that are hidden together.

A text is cut into groups of words, each as long as a draw says, anew for every key; then whole
groups are chosen. So the lengths of what is chosen are distributed as the draws, groups never
overlap, and words are equally likely to be chosen, but for the group that the budget cuts.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from bertjax.layers import corruption


def ngram_lengths(longest: int = 3) -> Float[np.ndarray, " n"]:
    """ALBERT's lengths, 1 to 3 words with p(n) proportional to 1/n (Lan et al. 2020, 4.1)."""
    shares = 1 / np.arange(1, longest + 1)
    return shares / shares.sum()


def span_lengths(longest: int = 10, success: float = 0.2) -> Float[np.ndarray, " n"]:
    """SpanBERT's lengths, geometric and clipped at 10 words (Joshi et al. 2020, section 3.1).

    Longer draws are thrown away, as the mean of 3.8 shows; 10 does not collect them.
    """
    shares = success * (1 - success) ** np.arange(longest)
    return shares / shares.sum()


def group_words(
    keys: Key[Array, "B"],
    maskable: Bool[Array, "B L"],
    word_starts: Bool[Array, "B L"],
    lengths: Float[np.ndarray, " n"],
) -> Bool[Array, "B L"]:
    """Cuts each text into groups of 1 to n words.

    A group ends before a token that may not be masked, such as a separator, whatever was drawn.

    Args:
      keys: One for each example.
      maskable: Which tokens may be masked.
      word_starts: Which tokens begin a word.
      lengths: The probability of a group of 1, 2 ... n words.

    Returns:
      Where groups begin.
    """

    def one(key, maskable, starts):
        follows = jnp.concatenate([jnp.zeros(1, bool), maskable[:-1]])
        begins = maskable & (starts | ~follows)
        word = jnp.cumsum(begins) - 1
        drawn = 1 + jax.random.choice(key, len(lengths), maskable.shape, p=jnp.asarray(lengths))
        firsts = jnp.zeros_like(maskable).at[jnp.cumsum(drawn) - drawn].set(True, mode="drop")
        return begins & (firsts[word] | ~follows)

    return jax.vmap(one)(keys, maskable, word_starts)


def choose_ngrams(
    keys: Key[Array, "B"],
    maskable: Bool[Array, "B L"],
    word_starts: Bool[Array, "B L"],
    budget: Int[Array, "B"],
    limit: int,
) -> tuple[Int[Array, "B P"], Float[Array, "B P"]]:
    """Chooses n-grams of whole words until exactly `budget` tokens are chosen.

    Positions and weights are as `corruption.choose_words` gives them, and so is what happens to an
    n-gram that would exceed the budget.
    """
    cutting, choosing = jax.vmap(jax.random.split, out_axes=1)(keys)
    groups = group_words(cutting, maskable, word_starts, ngram_lengths())
    return corruption.choose_words(choosing, maskable, groups, budget, limit)


def choose_spans(
    keys: Key[Array, "B"],
    maskable: Bool[Array, "B L"],
    word_starts: Bool[Array, "B L"],
    budget: Int[Array, "B"],
    limit: int,
) -> tuple[Int[Array, "B P"], Float[Array, "B P"], Int[Array, "B P 2"]]:
    """Chooses spans of whole words until exactly `budget` tokens are chosen.

    The last span is cut where the budget ends, as in SpanBERT's code.

    Returns:
      Positions and weights, as `corruption.choose_tokens`, and the first and last position of the
      span that each chosen token is part of.
    """
    length = maskable.shape[1]
    cutting, choosing = jax.vmap(jax.random.split, out_axes=1)(keys)
    group = jnp.cumsum(group_words(cutting, maskable, word_starts, span_lengths()), axis=1) - 1
    places = jax.vmap(lambda key: jax.random.permutation(key, length))(choosing)
    ranking = jnp.take_along_axis(places, group, axis=1) * length + jnp.arange(length)
    ranking = jnp.where(maskable, ranking.astype(jnp.uint32), jnp.uint32(1 << 31))
    positions, weights = corruption.first(ranking, budget, limit)
    return positions, weights, _bounds(positions, weights, group)


def _bounds(
    positions: Int[Array, "B P"], weights: Float[Array, "B P"], group: Int[Array, "B L"]
) -> Int[Array, "B P 2"]:
    """The first and last chosen position of every chosen position's group; 0 for padding."""
    own = jnp.take_along_axis(group, positions, axis=1)
    chosen = weights > 0
    together = (own[:, :, None] == own[:, None, :]) & chosen[:, :, None] & chosen[:, None, :]
    others = positions[:, None, :]
    first = jnp.where(together, others, group.shape[1]).min(axis=2)
    last = jnp.where(together, others, 0).max(axis=2)
    return jnp.stack([jnp.where(chosen, first, 0), last], axis=-1)
