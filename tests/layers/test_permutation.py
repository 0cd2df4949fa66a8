"""Targets of a permutation language model: exact budgets, spans in contexts, random orders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.masking import prediction_budget
from bertjax.layers.memory import choose_spans, sample_order

LIMIT = 40


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def choose(maskable, starts, *, context=6.0, max_length=5, seed=0, limit=LIMIT):
    maskable, starts = jnp.asarray(maskable), jnp.asarray(starts)
    limit = min(limit, maskable.shape[1])
    budget = prediction_budget(maskable, 1 / context, limit)
    positions, weights = jax.jit(
        lambda k: choose_spans(
            k, maskable, starts, budget, limit, context=context, max_length=max_length
        )
    )(keys(len(maskable), seed))
    return np.asarray(positions), np.asarray(weights), np.asarray(budget)


def places(positions, weights, length):
    chosen = np.zeros((len(positions), length), bool)
    for row, (at, real) in enumerate(zip(positions, weights > 0, strict=True)):
        assert len(set(at[real])) == real.sum()
        chosen[row, at[real]] = True
    return chosen


@pytest.mark.parametrize("length", [1, 2, 5, 29, 128])
def test_the_budget_is_exact(length):
    """For words of one token, for words of several tokens, and for one long word."""
    generator = np.random.default_rng(length)
    maskable = generator.random((50, length)) < 0.8
    maskable[0], maskable[1] = True, False
    maskable = np.tile(maskable, (3, 1))
    words = generator.random((50, length)) < 0.4
    starts = np.concatenate([np.ones_like(words), words, np.zeros_like(words)])
    positions, weights, budget = choose(maskable, starts)
    chosen = places(positions, weights, length)
    assert chosen.sum(axis=1).tolist() == budget.tolist()
    assert budget[1::50].tolist() == [0, 0, 0]
    assert (chosen <= maskable).all()


def test_spans_are_of_whole_words_in_published_proportions():
    """Words of 1 to 4 tokens in 400 long texts; spans start and end at word boundaries."""
    count, length = 400, 240
    generator = np.random.default_rng(0)
    starts = generator.random((count, length)) < 0.6
    starts[:, 0] = True
    positions, weights, _ = choose(np.ones((count, length), bool), starts)
    chosen = places(positions, weights, length)
    ends = np.roll(starts, -1, axis=1)
    begins_span = chosen & ~np.pad(chosen, ((0, 0), (1, 0)))[:, :-1]
    ends_span = chosen & ~np.pad(chosen, ((0, 0), (0, 1)))[:, 1:]
    # Fillings and the one span that the budget cuts are all that is not of whole words.
    assert np.mean(starts[begins_span]) > 0.93
    assert np.mean(ends[ends_span]) > 0.93
    spans = np.cumsum(begins_span.reshape(-1))[(chosen & starts).reshape(-1)]
    words = np.bincount(np.unique(spans, return_counts=True)[1])[1:6]
    expected = 1 / np.arange(1, 6)
    np.testing.assert_allclose(words / words.sum(), expected / expected.sum(), atol=0.05)
    # No part of a text is predicted more often than another.
    thirds = chosen.reshape(count, 3, -1).mean(axis=(0, 2))
    np.testing.assert_allclose(thirds, 1 / 6, atol=0.02)


def test_a_span_is_anywhere_within_its_context():
    """Only the first span of each text; with three words, up to three words precede it."""
    every = np.ones((501, 29), bool)
    positions, weights, _ = choose(every, every, context=2.0, max_length=3, limit=1)
    assert weights.all()
    assert set(positions[:, 0].tolist()) == {0, 1, 2, 3}


def test_samples_differ_between_steps_and_examples():
    maskable = np.ones((2, 60), bool)
    (first, *_), (other, *_) = choose(maskable, maskable), choose(maskable, maskable, seed=1)
    assert (first != other).any()
    assert (first[0] != first[1]).any()


def test_only_targets_and_special_tokens_are_ordered():
    positions = jnp.asarray([[4, 1, 0], [0, 0, 0]])
    weights = jnp.asarray([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    special = jnp.asarray([[0, 0, 0, 0, 0, 1, 1]] * 2, bool)
    order = np.asarray(
        [sample_order(keys(2, seed), positions, weights, special) for seed in range(99)]
    )
    assert (order[:, 0, [0, 2, 3]] == -1).all()
    assert (order[:, 1, :5] == -1).all()
    ordered = order[:, 0][:, [1, 4, 5, 6]]
    assert (ordered >= 0).all()
    assert all(len(set(row)) == 4 for row in ordered.tolist())
    firsts = np.bincount(ordered.argmin(axis=1), minlength=4)
    assert firsts.min() > 10
