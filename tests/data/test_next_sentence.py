"""Random partners of next-sentence pairs."""

import numpy as np
import pytest

from bertjax.data.segments import assign_partners, sample_other_documents


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 100, 1003])
def test_pairings_are_mutual_and_split_equally(size):
    everyone = np.arange(size)
    is_random, partner, split = assign_partners(2, everyone, size, seed=1)
    coupled = np.flatnonzero(partner >= 0)
    assert is_random[coupled].all()
    assert np.array_equal(partner[partner[coupled]], coupled)
    assert (partner[coupled] != coupled).all()
    assert np.array_equal(split[partner[coupled]], split[coupled])
    assert len(set(split[coupled].tolist())) == len(coupled) // 2
    # Of every four examples two are random; at most one of them has no partner.
    assert abs(is_random.sum() - size / 2) <= 1
    assert is_random.sum() - len(coupled) <= 1


def test_pairings_differ_between_epochs():
    everyone = np.arange(1000)
    first, second = (assign_partners(epoch, everyone, 1000, 1).partner for epoch in (0, 1))
    assert ((first == second) & (first >= 0)).sum() < 20


def test_samples_are_uniform_over_all_other_documents():
    examples_of_document = np.array([0, 3, 3, 5, 10])
    example = np.repeat(np.arange(10), 9000)
    document = np.repeat([0, 0, 0, 2, 2, 3, 3, 3, 3, 3], 9000)
    partners = np.concatenate(
        [
            sample_other_documents(
                epoch, example[::9000], document[::9000], examples_of_document, 0
            )
            for epoch in range(9000)
        ]
    ).reshape(9000, 10)
    for number, others in ((0, range(3, 10)), (4, (0, 1, 2, *range(5, 10))), (9, range(5))):
        counts = np.bincount(partners[:, number], minlength=10)
        expected = 9000 / len(others)
        assert sorted(np.flatnonzero(counts)) == list(others)
        assert np.abs(counts[list(others)] - expected).max() < 5 * np.sqrt(expected)
