"""Selection and masking of tokens: exact counts, uniform sampling, whole words (invariant 1)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import masking

MASK, VOCABULARY = 4, 50


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


@functools.partial(jax.jit, static_argnames="limit")
def tokens(keys, maskable, budget, limit):
    return masking.choose_tokens(keys, maskable, budget, limit)


@functools.partial(jax.jit, static_argnames="limit")
def words(keys, maskable, starts, budget, limit):
    return masking.choose_words(keys, maskable, starts, budget, limit)


def chosen(positions, weights):
    """The chosen positions of each example as a list of sets; none may come twice."""
    rows = [row[weight > 0].tolist() for row, weight in zip(positions, weights, strict=True)]
    assert all(len(row) == len(set(row)) for row in rows)
    return [set(row) for row in rows]


def test_the_budget_is_the_rounded_share_of_maskable_tokens():
    lengths = np.arange(513)
    maskable = jnp.asarray(np.arange(512) < lengths[:, None])
    budget = masking.prediction_budget(maskable, 0.15, 77)
    expected = [min(max(1, round(0.15 * n)), 77) if n else 0 for n in lengths.tolist()]
    np.testing.assert_array_equal(budget, expected)
    assert masking.prediction_budget(maskable, 0.15, 20).max() == 20


def test_exactly_the_budget_is_chosen_among_maskable_tokens():
    generator = np.random.default_rng(0)
    maskable = generator.random((64, 37)) < generator.random((64, 1))
    budget = np.minimum(generator.integers(0, 12, 64), maskable.sum(-1))
    positions, weights = tokens(keys(64), jnp.asarray(maskable), jnp.asarray(budget), 11)
    assert positions.shape == weights.shape == (64, 11)
    np.testing.assert_array_equal(weights.sum(-1), budget)
    assert np.all(positions[weights == 0] == 0)
    for row, places in zip(maskable, chosen(positions, weights), strict=True):
        assert all(row[place] for place in places)


def test_every_maskable_token_is_equally_likely():
    maskable = jnp.asarray(np.tile([False, True, True, False, True, True, True, True], (20_000, 1)))
    budget = jnp.full(20_000, 2)
    positions, weights = tokens(keys(20_000), maskable, budget, 3)
    counts = np.bincount(np.asarray(positions)[np.asarray(weights) > 0], minlength=8)
    assert counts[0] == counts[3] == 0
    expected = 2 * 20_000 / 6
    share = 2 / 6
    deviation = (20_000 * share * (1 - share)) ** 0.5
    assert np.abs(counts[[1, 2, 4, 5, 6, 7]] - expected).max() < 4.5 * deviation
    # So is every pair of them.
    pairs = np.sort(np.asarray(positions)[:, :2], axis=1)
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    assert len(counts) == 15
    assert np.abs(counts - 20_000 / 15).max() < 4.5 * (20_000 / 15) ** 0.5


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        ((0, 1, 2, 3, 12), [4, 5, 6, 7, 8, 9, 10, 11]),  # as in RoBERTa's vocabulary: <mask> last
        ((5, 6, 9, 5), [0, 1, 2, 3, 4, 7, 8, 10, 11, 12]),
        ((), [*range(13)]),
    ],
)
def test_random_tokens_are_never_special_and_otherwise_equally_likely(special, expected):
    samples = masking.random_tokens(jax.random.key(3), (200, 103), 13, special)
    counts = np.bincount(np.asarray(samples).ravel(), minlength=13)
    assert np.flatnonzero(counts).tolist() == expected
    mean = samples.size / len(expected)
    assert np.abs(counts[expected] - mean).max() < 4.5 * mean**0.5


def sizes_and_starts(generator, length):
    """Words of 1 to 5 tokens that fill a row."""
    starts = np.zeros(length, bool)
    place = 0
    while place < length:
        starts[place] = True
        place += generator.integers(1, 6)
    return starts


def test_words_are_chosen_whole_whenever_possible():
    generator = np.random.default_rng(1)
    starts = np.stack([sizes_and_starts(generator, 41) for _ in range(400)])
    maskable = np.ones((400, 41), bool)
    maskable[:, 30:] = generator.random((400, 1)) < 0.5
    budget = generator.integers(1, 9, 400)
    positions, weights = words(
        keys(400), jnp.asarray(maskable), jnp.asarray(starts), jnp.asarray(budget), 8
    )
    np.testing.assert_array_equal(weights.sum(-1), budget)
    cut_examples = 0
    for row, places in enumerate(chosen(positions, weights)):
        assert all(maskable[row, place] for place in places)
        word = np.cumsum(starts[row]) - 1
        members = [set(np.flatnonzero((word == w) & maskable[row])) for w in range(word.max() + 1)]
        cut = [w for w in members if w & places and not w <= places]
        assert len(cut) <= 1
        cut_examples += len(cut)
        if cut:
            # The rest of the budget, which the cut word filled, held no untouched word whole.
            left = len(cut[0] & places)
            assert all(len(w) > left for w in members if w and not w & places)
            # It is the word's beginning that was taken.
            assert cut[0] & places == set(sorted(cut[0])[:left])
    assert 0 < cut_examples < 200


def test_words_of_one_token_are_selected_like_tokens():
    """For instance Chinese characters: every position is equally likely."""
    maskable, starts = jnp.ones((20_000, 7), bool), jnp.ones((20_000, 7), bool)
    positions, weights = words(keys(20_000), maskable, starts, jnp.full(20_000, 2), 2)
    assert np.all(weights == 1)
    counts = np.bincount(np.asarray(positions).ravel(), minlength=7)
    deviation = (20_000 * 2 / 7 * 5 / 7) ** 0.5
    assert np.abs(counts - 40_000 / 7).max() < 4.5 * deviation


def test_words_of_several_characters_stay_together():
    starts = jnp.asarray(np.tile([1, 0, 1, 0, 1, 0, 1, 0], (500, 1)).astype(bool))
    positions, weights = words(keys(500), jnp.ones((500, 8), bool), starts, jnp.full(500, 4), 4)
    seen = set()
    for places in chosen(positions, weights):
        assert {place // 2 * 2 for place in places} | {p // 2 * 2 + 1 for p in places} == places
        seen.add(frozenset(places))
    assert len(seen) == 6


def test_a_text_of_one_long_word_is_truncated_to_the_budget():
    starts = jnp.zeros((3, 20), bool).at[1, 0].set(True)
    positions, weights = words(keys(3), jnp.ones((3, 20), bool), starts, jnp.array([3, 1, 0]), 4)
    assert chosen(positions, weights) == [{0, 1, 2}, {0}, set()]


def test_only_selected_tokens_are_masked():
    ids = jnp.asarray(np.random.default_rng(2).integers(5, VOCABULARY, (64, 37)))
    positions, weights = tokens(keys(64), jnp.ones((64, 37), bool), jnp.full(64, 5), 11)
    hidden = masking.mask_tokens(
        keys(64, 1), ids, positions, weights, mask_id=MASK, vocab_size=VOCABULARY, mask_share=1.0
    )
    changed = [set(np.flatnonzero(row)) for row in np.asarray(hidden != ids)]
    assert changed == chosen(positions, weights)
    assert np.all(np.asarray(hidden)[np.asarray(hidden != ids)] == MASK)


@pytest.mark.parametrize(("mask_share", "random_share"), [(0.8, 0.1), (0.3, 0.5)])
def test_shares_of_masked_random_and_unchanged_tokens(mask_share, random_share):
    count, width = 4000, 25
    # Tokens outside the random range distinguish unchanged from random tokens.
    ids = jnp.full((count, width), VOCABULARY)
    positions = jnp.tile(jnp.arange(width), (count, 1))
    hidden = masking.mask_tokens(
        keys(count),
        ids,
        positions,
        jnp.ones((count, width)),
        mask_id=VOCABULARY + 1,
        vocab_size=VOCABULARY,
        mask_share=mask_share,
        random_share=random_share,
    )
    samples = np.asarray(hidden).ravel()
    masked, kept = samples == VOCABULARY + 1, samples == VOCABULARY
    for got, share in [
        (masked, mask_share),
        (kept, 1 - mask_share - random_share),
        (~masked & ~kept, random_share),
    ]:
        deviation = (share * (1 - share) / samples.size) ** 0.5
        assert got.mean() == pytest.approx(share, abs=4.5 * deviation)
    # Random tokens are spread over the whole vocabulary.
    counts = np.bincount(samples[~masked & ~kept], minlength=VOCABULARY)
    assert len(counts) == VOCABULARY
    expected = counts.sum() / VOCABULARY
    assert np.abs(counts - expected).max() < 4.5 * expected**0.5
