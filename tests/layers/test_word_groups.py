"""N-grams and spans of words: lengths, whole words, exact budgets (invariant 1)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import masking


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


CHOOSERS = {"ngram": masking.choose_ngrams, "span": masking.choose_spans}


@functools.partial(jax.jit, static_argnames=("kind", "limit"))
def choose(kind, keys, maskable, starts, budget, limit):
    return CHOOSERS[kind](keys, maskable, starts, budget, limit)


def test_lengths_of_ngrams():
    np.testing.assert_allclose(masking.ngram_lengths(), [6 / 11, 3 / 11, 2 / 11])


def test_lengths_of_spans():
    shares = masking.span_lengths()
    assert len(shares) == 10
    assert shares.sum() == pytest.approx(1)
    np.testing.assert_allclose(shares[1:] / shares[:-1], 0.8)
    # The paper's mean; clipping samples beyond 10 to 10 would give 4.46.
    assert shares @ np.arange(1, 11) == pytest.approx(3.7971, abs=1e-4)


def sizes_of_groups(starts):
    """Sizes of all groups of one-token words, except the last of each row."""
    return np.concatenate([np.diff(np.flatnonzero(row)) for row in np.asarray(starts)])


@pytest.mark.parametrize("lengths", [masking.ngram_lengths(), masking.span_lengths()])
def test_groups_have_the_sampled_lengths(lengths):
    words = jnp.ones((40, 1500), bool)
    starts = masking.group_words(keys(40), words, words, lengths)
    sizes = sizes_of_groups(starts)
    got = np.bincount(sizes, minlength=len(lengths) + 1)[1:] / len(sizes)
    assert len(got) == len(lengths)
    error = (lengths * (1 - lengths) / len(sizes)) ** 0.5
    assert np.abs(got - lengths).max() < 4.5 * error.max()


def test_groups_start_at_words_and_end_before_unmaskable_tokens():
    # [CLS] aa b ccc [SEP] d ee [SEP]
    starts = jnp.array([[1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1]], bool)
    maskable = jnp.array([[0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0]], bool)
    single, endless = np.array([1.0]), np.array([0.0] * 9 + [1.0])
    every = masking.group_words(keys(1), maskable, starts, single)
    assert np.flatnonzero(every).tolist() == [1, 3, 4, 8, 9]
    long = masking.group_words(keys(1), maskable, starts, endless)
    assert np.flatnonzero(long).tolist() == [1, 8]
    # A word whose beginning was cut off still begins a group.
    cut = masking.group_words(keys(1), maskable, starts.at[0, 8].set(False), endless)
    assert np.flatnonzero(cut).tolist() == [1, 8]


def texts(generator, count, length):
    """Rows of words of 1 to 4 tokens, with separators and padding."""
    starts = generator.random((count, length)) < 0.6
    maskable = generator.random((count, length)) < 0.95
    ends = generator.integers(0, length + 1, count)
    return starts, maskable & (np.arange(length) < ends[:, None])


@pytest.mark.parametrize("kind", CHOOSERS)
def test_the_budget_is_met_exactly(kind):
    """Texts of 0 to 41 tokens with unmaskable positions, and all possible budgets."""
    starts, maskable = texts(np.random.default_rng(1), 300, 41)
    budget = np.minimum(np.random.default_rng(2).integers(0, 14, 300), maskable.sum(-1))
    positions, weights, *_ = choose(kind, keys(300), maskable, starts, jnp.asarray(budget), 13)
    np.testing.assert_array_equal(weights.sum(-1), budget)
    for row in range(300):
        places = np.asarray(positions)[row, : budget[row]].tolist()
        assert len(set(places)) == budget[row]
        assert all(maskable[row, place] for place in places)


@pytest.mark.parametrize("kind", CHOOSERS)
def test_a_text_of_one_long_word_is_truncated_to_the_budget(kind):
    starts = jnp.zeros((3, 20), bool).at[:, :2].set(True)
    maskable = jnp.ones((3, 20), bool).at[:, 0].set(False)
    positions, weights, *_ = choose(kind, keys(3), maskable, starts, jnp.array([3, 1, 0]), 4)
    rows = [
        row[weight > 0].tolist() for row, weight in zip(np.asarray(positions), weights, strict=True)
    ]
    assert [sorted(row) for row in rows] == [[1, 2, 3], [1], []]


def test_ngrams_are_chosen_whole_whenever_possible():
    """Words of one token: selected tokens are runs, of which at most one is truncated."""
    words, budget = jnp.ones((500, 60), bool), jnp.full(500, 9)
    positions, _ = choose("ngram", keys(500), words, words, budget, 9)
    cutting, _ = jax.vmap(jax.random.split, out_axes=1)(keys(500))
    groups = np.cumsum(masking.group_words(cutting, words, words, masking.ngram_lengths()), axis=1)
    for row, places in enumerate(np.asarray(positions)):
        for group in set(groups[row, places].tolist()):
            assert set(np.flatnonzero(groups[row] == group)) <= set(places.tolist())


def test_spans_are_runs_of_whole_words_with_their_boundaries():
    starts, maskable = texts(np.random.default_rng(3), 300, 53)
    budget = np.minimum(9, maskable.sum(-1))
    positions, weights, spans = map(
        np.asarray, choose("span", keys(300), maskable, starts, jnp.asarray(budget), 11)
    )
    assert spans.shape == (300, 11, 2)
    cut = 0
    for row in range(300):
        places = positions[row, : budget[row]]
        found = {tuple(span) for span in spans[row, : budget[row]].tolist()}
        inside = sorted(place for first, last in found for place in range(first, last + 1))
        assert inside == sorted(places.tolist())
        for place, (first, last) in zip(places, spans[row], strict=False):
            assert first <= place <= last
        ends_inside_word = 0
        for first, last in found:
            assert starts[row, first] or first == 0 or not maskable[row, first - 1]
            after = last + 1
            ends_inside_word += after < 53 and maskable[row, after] and not starts[row, after]
        assert ends_inside_word <= 1
        cut += ends_inside_word
        assert np.all(spans[row, budget[row] :] == 0)
        assert np.all(weights[row] == (np.arange(11) < budget[row]))
    assert 0 < cut < 200


def test_the_mean_length_of_spans_is_that_of_the_paper():
    """The first span of each text, which is never truncated: 3.8 words."""
    words = jnp.ones((4000, 128), bool)
    positions, _, spans = choose("span", keys(4000), words, words, jnp.full(4000, 10), 10)
    first = np.asarray(spans)[:, 0]
    sizes = first[:, 1] - first[:, 0] + 1
    # The end of the text cuts the last of some 34 groups.
    sizes = sizes[first[:, 1] < 127]
    assert sizes.mean() == pytest.approx(3.797, abs=4.5 * 2.6 / 4000**0.5 + 0.06)
    assert sizes.min() == 1
    assert sizes.max() == 10
    np.testing.assert_array_equal(np.asarray(positions)[:, 0], first[:, 0])


@pytest.mark.parametrize("kind", CHOOSERS)
def test_every_word_is_equally_likely(kind):
    count, length, budget = 20_000, 100, 15
    words = jnp.ones((count, length), bool)
    positions, *_ = choose(kind, keys(count), words, words, jnp.full(count, budget), budget)
    counts = np.bincount(np.asarray(positions).ravel(), minlength=length)
    expected = count * budget / length
    # Of the group that the budget cuts, the beginning is kept: that favours the first words a bit.
    assert np.abs(counts / expected - 1).max() < 0.16
    assert np.abs(counts[12:] / expected - 1).max() < 0.12


@pytest.mark.parametrize("kind", CHOOSERS)
def test_the_selection_depends_only_on_the_key(kind):
    starts, maskable = texts(np.random.default_rng(4), 8, 29)
    budget = jnp.minimum(5, maskable.sum(-1))
    together = choose(kind, keys(8), maskable, starts, budget, 5)
    turned = choose(kind, keys(8)[::-1], maskable[::-1], starts[::-1], budget[::-1], 5)
    for whole, other in zip(together, turned, strict=True):
        np.testing.assert_array_equal(whole, np.asarray(other)[::-1])
