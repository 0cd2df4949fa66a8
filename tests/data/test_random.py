"""Counter-based random numbers of the host."""

import hashlib

import numpy as np

from bertjax.data.random import below, random_words, uniforms

MASK = (1 << 64) - 1


def plain_mix(word: int) -> int:
    """SplitMix64 with Python integers."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def test_random_words_are_those_of_splitmix():
    key = int.from_bytes(hashlib.blake2b(b"7/test", digest_size=8).digest(), "little")
    golden = 0x9E3779B97F4A7C15
    expected = [
        plain_mix((plain_mix((key + 5 * golden) & MASK) + counter * golden) & MASK)
        for counter in (0, 1, 12345678901)
    ]
    assert random_words(7, "test", 5, np.array([0, 1, 12345678901])).tolist() == expected


def test_splitmix_has_its_published_values():
    # The first two numbers of the reference implementation for seed 1234567.
    golden = 0x9E3779B97F4A7C15
    found = [plain_mix((1234567 + number * golden) & MASK) for number in (1, 2)]
    assert found == [6457827717110365317, 3203168211198807973]


def test_any_integer_is_a_seed():
    found = {int(random_words(seed, "test", 0)[0]) for seed in (-1, 0, 1, 2**64, 2**200)}
    assert len(found) == 5


def test_uniforms_are_uniform():
    draws = uniforms(0, "test", 3, np.arange(100_000))
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = np.bincount((draws * 10).astype(int), minlength=10)
    assert np.abs(counts - 10_000).max() < 5 * np.sqrt(10_000)


def test_purposes_and_counters_are_independent():
    numbers = np.arange(100_000)
    draws = [
        uniforms(0, "a", 0, numbers),
        uniforms(0, "b", 0, numbers),
        uniforms(0, "a", 1, numbers),
    ]
    off_diagonal = np.corrcoef(draws)[np.triu_indices(3, 1)]
    assert np.abs(off_diagonal).max() < 5 / np.sqrt(len(numbers))


def test_the_largest_uniform_stays_below_the_limit():
    limits = np.array([1, 3, 7, 10**9 + 7, 2**40 + 1])
    assert (below(limits, np.full(5, 1 - 2.0**-53)) == limits - 1).all()
    assert (below(limits, np.zeros(5)) == 0).all()
