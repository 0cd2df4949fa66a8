"""tools/measure_ngrams.py: unigram and bigram probabilities by hand, which sum to one."""

import types

import numpy as np
import pytest

SIZE = 5


@pytest.fixture(scope="module")
def ngrams(load_script):
    return load_script("tools/measure_ngrams.py")


def tokens(*pairs):
    before, after = np.array(pairs).T
    return types.SimpleNamespace(before=before, after=after)


# Six pairs: (1, 2) three times, the others once.
TRAIN = tokens((1, 2), (1, 2), (1, 2), (1, 3), (2, 3), (4, 1))


def test_unigrams_by_hand(ngrams):
    assert ngrams.unigram(TRAIN, tokens((1, 2)), SIZE) == pytest.approx(-np.log(4 / 11))
    assert ngrams.unigram(TRAIN, tokens((1, 0)), SIZE) == pytest.approx(-np.log(1 / 11))


def test_bigrams_by_hand(ngrams):
    """Counts of 1 are discounted entirely, since no pair has a count of 2."""
    # Different pairs in which a token comes second, and one more: 1, 2, 2, 3, 1 of 9.
    seen = 2 / 4 + 2 / 4 * 2 / 9
    assert ngrams.bigram(TRAIN, tokens((1, 2)), SIZE) == pytest.approx(-np.log(seen))
    assert ngrams.bigram(TRAIN, tokens((1, 4)), SIZE) == pytest.approx(-np.log(2 / 4 * 1 / 9))
    assert ngrams.bigram(TRAIN, tokens((3, 3)), SIZE) == pytest.approx(-np.log(3 / 9))


def test_probabilities_add_up_to_one(ngrams):
    random = np.random.default_rng(0)
    train = tokens(*random.integers(0, SIZE, (40, 2)))
    for before in range(SIZE):
        probs = [np.exp(-ngrams.bigram(train, tokens((before, w)), SIZE)) for w in range(SIZE)]
        assert sum(probs) == pytest.approx(1.0)
