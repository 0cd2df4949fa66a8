"""Greedy and beam search, with a table as the model: logits depend on the last two tokens."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.decoding import beam, search
from bertjax.decoding.search import Decoder, TokenSampler
from bertjax.errors import UserError

V, END, NEW = 5, 0, 4
TABLE = np.random.default_rng(3).normal(0, 2, (V, V, V)).astype(np.float32)
HISTORY = jnp.array([[-1, 3, 1], [2, 4, 4]])
CACHE = HISTORY[:, -2]
"""The token before the one that is read: all that the model remembers."""


def step(cache, tokens):
    return jnp.asarray(TABLE)[cache, tokens], tokens


DECODER = Decoder(step)


def log_probability(before, tokens):
    total, (a, b) = 0.0, before
    for token in tokens:
        row = TABLE[a, b].astype(np.float64)
        total += row[token] - np.log(np.exp(row).sum())
        a, b = b, token
    return total


def follow(before, length=NEW, choose=np.argmax):
    """The most likely tokens one by one, up to the end token, then -1."""
    tokens, (a, b) = [], before
    while len(tokens) < length and END not in tokens:
        tokens.append(int(choose(TABLE[a, b])))
        a, b = b, tokens[-1]
    return tokens + [-1] * (length - len(tokens))


def test_greedy_search_takes_the_most_likely_tokens_until_the_end():
    found = search.complete(DECODER, CACHE, HISTORY, max_new_tokens=9, end_id=END)
    expected = [follow(row, 9) for row in ((3, 1), (4, 4))]
    np.testing.assert_array_equal(found, expected)
    assert (np.asarray(found) == -1).any(axis=1).sum() >= 1


def test_without_an_end_every_row_gets_all_tokens():
    found = search.complete(DECODER, CACHE, HISTORY, max_new_tokens=7)
    assert found.shape == (2, 7)
    assert (found >= 0).all()


def continuations():
    """All continuations that end with END or have the maximum length."""
    for tokens in itertools.product(range(V), repeat=NEW):
        cut = tokens.index(END) + 1 if END in tokens else NEW
        yield tokens[:cut]


@pytest.mark.parametrize(
    ("penalty", "divisor"),
    [
        (beam.power(0.0), lambda n: 1),
        (beam.power(1.0), lambda n: n),
        (beam.shifted_power(0.6), lambda n: ((5 + n) / 6) ** 0.6),
    ],
)
def test_a_wide_beam_finds_the_best_continuation(penalty, divisor):
    """With 5 candidates and two steps nothing is pruned; finished beams stay candidates."""
    few = {"max_new_tokens": 2, "end_id": END, "penalty": penalty}
    tokens, scores = beam.search(DECODER, CACHE, HISTORY, width=V, **few)
    for row, before in enumerate(((3, 1), (4, 4))):
        every = {
            tokens[:2]: log_probability(before, tokens[:2]) / divisor(len(tokens[:2]))
            for tokens in continuations()
        }
        best = max(every, key=every.get)
        assert tuple(t for t in np.asarray(tokens)[row] if t >= 0) == best
        assert float(scores[row]) == pytest.approx(every[best], rel=1e-5)


def test_a_beam_of_one_is_greedy_and_wider_beams_score_at_least_as_well():
    one, _ = beam.search(DECODER, CACHE, HISTORY, width=1, max_new_tokens=NEW)
    greedy = search.complete(DECODER, CACHE, HISTORY, max_new_tokens=NEW)
    np.testing.assert_array_equal(one, greedy)
    scores = [
        beam.search(DECODER, CACHE, HISTORY, width=width, max_new_tokens=NEW)[1] for width in (1, V)
    ]
    assert (np.asarray(scores[1]) >= np.asarray(scores[0]) - 1e-6).all()


def test_the_cache_follows_the_beams():
    """Beams change their rows from step to step, and caches are reordered with them."""
    pairs = np.array(list(itertools.product(range(V), repeat=2)))
    options = {"width": 3, "max_new_tokens": 2 * NEW, "penalty": beam.power(0.0)}
    tokens, scores = beam.search(DECODER, pairs[:, 0], jnp.asarray(pairs), **options)
    expected = [
        log_probability(before, row)
        for before, row in zip(pairs.tolist(), np.asarray(tokens).tolist(), strict=True)
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_a_beam_wider_than_the_vocabulary_is_refused():
    with pytest.raises(UserError, match="invalid beam width: got 6, expected 1 to"):
        beam.search(DECODER, CACHE, HISTORY, width=V + 1, max_new_tokens=2)


def test_the_samples_of_a_row_do_not_depend_on_the_batch():
    keys = jax.random.split(jax.random.key(0), 2)
    options = {"max_new_tokens": 6, "sampler": TokenSampler(temperature=1.0)}
    both = search.complete(DECODER, CACHE, HISTORY, keys=keys, **options)
    alone = search.complete(DECODER, CACHE[:1], HISTORY[:1, 1:], keys=keys[:1], **options)
    np.testing.assert_array_equal(both[:1], alone)


def test_a_search_can_be_run_step_by_step():
    state = search.init_state(CACHE, HISTORY, 3)
    for _ in range(3):
        state = search.advance(DECODER, state)
    whole = search.complete(DECODER, CACHE, HISTORY, max_new_tokens=3)
    np.testing.assert_array_equal(state.history[:, 3:], whole)
