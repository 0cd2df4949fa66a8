"""Sample the masked tokens of masked language models (Devlin et al. 2019, section 3.1).

Every function takes one random key per example and runs inside the jitted step.

N-grams and spans: a text is divided into groups of consecutive words with sampled lengths, anew for
every key, and whole groups are chosen. So masked groups have the sampled length distribution and
never overlap, and all words are equally likely to be masked, except in the group that the budget
truncates.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, UInt32


def prediction_budget(maskable: Bool[Array, "B L"], share: float, limit: int) -> Int[Array, "B"]:
    """Number of tokens to predict: `share` of the maskable ones, at least 1 and at most `limit`.

    It is 0 for an example without maskable tokens.
    """
    available = maskable.sum(axis=-1)
    # Rounded in float64, as in BERT's code: 0.15 * 190 is a tie in it, unlike in float32.
    budget = np.round(share * np.arange(maskable.shape[-1] + 1)).clip(1, limit)
    return jnp.minimum(jnp.asarray(budget, jnp.int32)[available], available)


def choose_tokens(
    keys: Key[Array, "B"], maskable: Bool[Array, "B L"], budget: Int[Array, "B"], limit: int
) -> tuple[Int[Array, "B P"], Float[Array, "B P"]]:
    """Samples `budget` maskable tokens of each example without replacement, all equally likely.

    Returns:
      `limit` positions per example, and weights: 1 for the first `budget` of them, else 0.
    """
    scores = jax.vmap(lambda key: jax.random.bits(key, maskable.shape[-1:], jnp.uint32))(keys)
    # One bit is dropped so that tokens that are not maskable come last.
    ranking = jnp.where(maskable, scores >> 1, jnp.uint32(1 << 31))
    return take_lowest(ranking, budget, limit)


def choose_words(
    keys: Key[Array, "B"],
    maskable: Bool[Array, "B L"],
    word_starts: Bool[Array, "B L"],
    budget: Int[Array, "B"],
    limit: int,
) -> tuple[Int[Array, "B P"], Float[Array, "B P"]]:
    """Chooses whole words in random order until exactly `budget` tokens are chosen.

    `word_starts` may mark any groups, such as n-grams. A word that would exceed the budget is
    skipped, as in BERT's whole-word masking. A word is truncated only if no remaining word fits, so
    that the number of predictions is exact.

    Returns:
      Positions and weights, as `choose_tokens`.
    """
    length = maskable.shape[-1]

    def rank_one(key, maskable, starts, budget):
        word = jnp.cumsum(starts | (jnp.arange(length) == 0)) - 1
        sizes = jnp.zeros(length, jnp.int32).at[word].add(maskable)
        order = jnp.argsort(jax.random.bits(key, (length,), jnp.uint32))

        def take(left, word):
            fits = sizes[word] <= left
            return left - jnp.where(fits, sizes[word], 0), fits

        _, fits = lax.scan(take, budget, order)
        place = (
            jnp.zeros(length, jnp.uint32)
            .at[order]
            .set(
                jnp.arange(length, dtype=jnp.uint32) + jnp.where(fits, 0, length).astype(jnp.uint32)
            )
        )
        ranking = place[word] * length + jnp.arange(length, dtype=jnp.uint32)
        return jnp.where(maskable, ranking, jnp.uint32(1 << 31))

    return take_lowest(jax.vmap(rank_one)(keys, maskable, word_starts, budget), budget, limit)


def take_lowest(
    ranking: UInt32[Array, "B L"], budget: Int[Array, "B"], limit: int
) -> tuple[Int[Array, "B P"], Float[Array, "B P"]]:
    """Returns the positions of the `limit` lowest ranks, with weight 1 for the first `budget`."""
    positions = jnp.argsort(ranking, axis=-1)[:, :limit].astype(jnp.int32)
    weights = (jnp.arange(limit) < budget[:, None]).astype(jnp.float32)
    return jnp.where(weights > 0, positions, 0), weights


def random_tokens(
    key: Key[Array, ""], shape: tuple[int, ...], vocab_size: int, special_ids: tuple[int, ...]
) -> Int[Array, "..."]:
    """Samples token ids uniformly from the vocabulary without special tokens."""
    special = np.unique(np.asarray(special_ids, np.int32))
    ids = jax.random.randint(key, shape, 0, vocab_size - len(special), jnp.int32)
    # An id increases by one for each special id, the n-th of them (from 0), that is <= id + n.
    return ids + (ids[..., None] >= special - np.arange(len(special))).sum(-1)


def mask_tokens(
    keys: Key[Array, "B"],
    input_ids: Int[Array, "B L"],
    positions: Int[Array, "B P"],
    weights: Float[Array, "B P"],
    *,
    mask_id: int,
    vocab_size: int,
    special_ids: tuple[int, ...] = (),
    groups: Int[Array, "B P"] | None = None,
    mask_share: float = 0.8,
    random_share: float = 0.1,
) -> Int[Array, "B L"]:
    """Replaces chosen tokens by [MASK] or a random token, or leaves them unchanged.

    The choice is sampled per token or, with `groups`, per group: tokens with the same number below
    L. Random tokens are sampled independently. They are never special tokens, as in RoBERTa's code;
    BERT's code also samples these, 5 of 30,522 ids.
    """
    if groups is None:
        groups = jnp.broadcast_to(jnp.arange(positions.shape[1]), positions.shape)

    def replacements(key, tokens, groups):
        choice_key, token_key = jax.random.split(key)
        uniform = jax.random.uniform(choice_key, input_ids.shape[1:])[groups]
        random = random_tokens(token_key, tokens.shape, vocab_size, special_ids)
        unmasked = jnp.where(uniform < mask_share + random_share, random, tokens)
        return jnp.where(uniform < mask_share, mask_id, unmasked)

    chosen = jnp.take_along_axis(input_ids, positions, axis=1)
    replaced = jax.vmap(replacements)(keys, chosen, groups)
    return replace(input_ids, positions, weights, replaced)


def replace(
    input_ids: Int[Array, "B L"],
    positions: Int[Array, "B P"],
    weights: Float[Array, "B P"],
    tokens: Int[Array, "B P"],
) -> Int[Array, "B L"]:
    """Writes tokens at the given positions, except those of weight zero."""
    # Positions of padding predictions are out of bounds, where a scatter drops them.
    positions = jnp.where(weights > 0, positions, input_ids.shape[1])
    return jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(
        input_ids, positions, tokens
    )


def sample(keys: Key[Array, "B"], logits: Float[Array, "B P V"]) -> Int[Array, "B P"]:
    """Samples tokens from softmax(logits), by the Gumbel-max trick."""
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:], jnp.float32))(keys)
    return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)


def ngram_lengths(max_length: int = 3) -> Float[np.ndarray, " n"]:
    """Length distribution of ALBERT's n-grams: p(n) proportional to 1/n (Lan et al. 2020, 4.1)."""
    shares = 1 / np.arange(1, max_length + 1)
    return shares / shares.sum()


def span_lengths(max_length: int = 10, success: float = 0.2) -> Float[np.ndarray, " n"]:
    """Length distribution of SpanBERT's spans: geometric, up to 10 words (Joshi et al. 2020, 3.1).

    Longer samples are rejected, as the published mean of 3.8 shows, not clipped to 10.
    """
    shares = success * (1 - success) ** np.arange(max_length)
    return shares / shares.sum()


def group_words(
    keys: Key[Array, "B"],
    maskable: Bool[Array, "B L"],
    word_starts: Bool[Array, "B L"],
    lengths: Float[np.ndarray, " n"],
) -> Bool[Array, "B L"]:
    """Divides each text into groups of 1 to n words.

    A group ends before a token that is not maskable, such as a separator, whatever its length.

    Args:
      keys: A key for each example.
      maskable: Which tokens may be masked.
      word_starts: Which tokens start a word.
      lengths: Probability of a group of 1, 2 ... n words.

    Returns:
      Which tokens start a group.
    """

    def one(key, maskable, starts):
        follows = jnp.concatenate([jnp.zeros(1, bool), maskable[:-1]])
        begins = maskable & (starts | ~follows)
        word = jnp.cumsum(begins) - 1
        sizes = 1 + jax.random.choice(key, len(lengths), maskable.shape, p=jnp.asarray(lengths))
        firsts = jnp.zeros_like(maskable).at[jnp.cumsum(sizes) - sizes].set(True, mode="drop")
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

    Results and the treatment of n-grams that would exceed the budget are as in `choose_words`.
    """
    group_keys, choice_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    groups = group_words(group_keys, maskable, word_starts, ngram_lengths())
    return choose_words(choice_keys, maskable, groups, budget, limit)


def choose_spans(
    keys: Key[Array, "B"],
    maskable: Bool[Array, "B L"],
    word_starts: Bool[Array, "B L"],
    budget: Int[Array, "B"],
    limit: int,
) -> tuple[Int[Array, "B P"], Float[Array, "B P"], Int[Array, "B P 2"]]:
    """Chooses spans of whole words until exactly `budget` tokens are chosen.

    The last span is truncated at the budget, as in SpanBERT's code.

    Returns:
      Positions and weights, as `choose_tokens`, and the first and last position of the span of each
      chosen token.
    """
    length = maskable.shape[1]
    group_keys, choice_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    group = jnp.cumsum(group_words(group_keys, maskable, word_starts, span_lengths()), axis=1) - 1
    places = jax.vmap(lambda key: jax.random.permutation(key, length))(choice_keys)
    ranking = jnp.take_along_axis(places, group, axis=1) * length + jnp.arange(length)
    ranking = jnp.where(maskable, ranking.astype(jnp.uint32), jnp.uint32(1 << 31))
    positions, weights = take_lowest(ranking, budget, limit)
    return positions, weights, _bounds(positions, weights, group)


def _bounds(
    positions: Int[Array, "B P"], weights: Float[Array, "B P"], group: Int[Array, "B L"]
) -> Int[Array, "B P 2"]:
    """The first and last chosen position in the group of every chosen one; 0 for padding."""
    own = jnp.take_along_axis(group, positions, axis=1)
    chosen = weights > 0
    together = (own[:, :, None] == own[:, None, :]) & chosen[:, :, None] & chosen[:, None, :]
    others = positions[:, None, :]
    first = jnp.where(together, others, group.shape[1]).min(axis=2)
    last = jnp.where(together, others, 0).max(axis=2)
    return jnp.stack([jnp.where(chosen, first, 0), last], axis=-1)


def random_word_starts(
    random: np.random.Generator, shape: tuple[int, int]
) -> Bool[np.ndarray, "B L"]:
    """Samples random first tokens of words, 0.8 of all tokens, for batches without a corpus."""
    return random.random(shape) < 0.8
