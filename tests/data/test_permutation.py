"""Pseudorandom permutations of example indices."""

import numpy as np
import pytest

from bertjax.data.random import permute, unpermute


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 9, 63, 64, 65, 1000, 4097])
def test_a_permutation_is_a_bijection(size):
    found = permute(np.arange(size), size, seed=3, purpose="test", epoch=4)
    assert sorted(found.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 11, 4097])
def test_unpermute_is_the_inverse(size):
    numbers = np.arange(size)
    permuted = permute(numbers, size, 3, "test", 4)
    assert np.array_equal(unpermute(permuted, size, 3, "test", 4), numbers)


def test_an_entry_does_not_depend_on_the_batch():
    whole = permute(np.arange(1009), 1009, 3, "test", 4)
    some = np.array([1008, 5, 5, 77])
    assert np.array_equal(permute(some, 1009, 3, "test", 4), whole[some])


def test_sizes_beyond_memory_are_permuted():
    size = 10**15 + 37
    numbers = np.array([0, 1, size // 2, size - 1])
    permuted = permute(numbers, size, 3, "test", 4)
    assert len(set(permuted.tolist())) == 4
    assert (permuted >= 0).all()
    assert (permuted < size).all()
    assert np.array_equal(unpermute(permuted, size, 3, "test", 4), numbers)


def test_seed_purpose_and_epoch_change_the_permutation():
    numbers = np.arange(101)
    keys = [(1, "a", 0), (2, "a", 0), (1, "b", 0), (1, "a", 1)]
    orders = [tuple(permute(numbers, 101, *key)) for key in keys]
    assert len(set(orders)) == 4


@pytest.mark.parametrize("size", [3, 5, 13])
def test_every_target_is_equally_likely(size):
    epochs = 3000
    counts = np.zeros((size, size))
    for epoch in range(epochs):
        counts[np.arange(size), permute(np.arange(size), size, 0, "test", epoch)] += 1
    # Standard deviations of a binomial: 5 of them are exceeded once in two million entries.
    share = 1 / size
    deviation = np.sqrt(epochs * share * (1 - share))
    assert np.abs(counts - epochs * share).max() < 5 * deviation


def test_neighbours_are_separated():
    size = 5003
    found = permute(np.arange(size), size, 0, "test", 0).astype(float)
    correlation = np.corrcoef(found[:-1], found[1:])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(size)
    # Two random numbers of [0, n) are n / 3 apart on the average.
    assert np.abs(np.diff(found)).mean() == pytest.approx(size / 3, rel=0.05)
