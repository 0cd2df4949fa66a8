"""Token sampling: the candidates left by top-k, top-p and penalties, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.decoding import search
from bertjax.decoding.search import TokenSampler
from bertjax.errors import UserError

SCORES = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]]))


def kept_tokens(scores):
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in np.asarray(scores)]


def test_top_k_keeps_the_highest():
    assert kept_tokens(search.keep_top_k(SCORES, 2)) == [[0, 1], [2, 3]]
    assert kept_tokens(search.keep_top_k(SCORES, 0)) == [[0, 1, 2, 3]] * 2
    assert kept_tokens(search.keep_top_k(SCORES, 9)) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("share", "expected"), [(0.49, [[0], [2, 3]]), (0.75, [[0, 1], [1, 2, 3]]), (1e-9, [[0], [3]])]
)
def test_top_p_keeps_the_smallest_sufficient_set(share, expected):
    assert kept_tokens(search.keep_top_p(SCORES, share)) == expected


def test_the_repetition_penalty_applies_to_previous_tokens():
    scores = jnp.array([[2.0, -2.0, 3.0, -3.0]])
    history = jnp.array([[-1, 0, 1, 0]])
    found = search.penalize_repetition(scores, history, 2.0)
    np.testing.assert_allclose(found, [[1.0, -4.0, 3.0, -3.0]])


def test_no_ngram_is_repeated():
    history = jnp.array([[-1, 1, 2, 3, 1, 2, -1, -1], [2, 2, 0, 2, 2, 2, -1, -1]])
    end = jnp.int32(6)
    three = np.asarray(search.find_repeated_ngrams(history, end, 3, 5))
    assert [np.flatnonzero(row).tolist() for row in three] == [[3], [0, 2]]
    one = np.asarray(search.find_repeated_ngrams(history, end, 1, 5))
    assert [np.flatnonzero(row).tolist() for row in one] == [[1, 2, 3], [0, 2]]
    assert not np.asarray(search.find_repeated_ngrams(history, end, 9, 5)).any()


def test_samples_follow_the_probabilities():
    keys = jax.random.split(jax.random.key(0), 4000)
    scores = jnp.tile(SCORES[:1], (4000, 1))
    tokens = np.asarray(TokenSampler(temperature=0.5).sample(scores, keys))
    expected = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    found = np.bincount(tokens, minlength=4) / 4000
    np.testing.assert_allclose(found, expected / expected.sum(), atol=0.03)
    assert set(np.asarray(TokenSampler(temperature=1.0, top_k=2).sample(scores, keys))) == {0, 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"no_repeat_ngram_size": -2},
    ],
)
def test_impossible_settings_are_one_line(fields):
    with pytest.raises(UserError, match=rf"{next(iter(fields))}: got .*, expected"):
        TokenSampler(**fields)
