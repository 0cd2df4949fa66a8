"""The split without a dev file: the same share of every class, also of several per example."""

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.sequence.examples import check_counts, choose_held_out


def test_every_class_has_the_same_share_and_at_least_one_example_on_both_sides():
    counts = (2, 3, 17, 101, 40)
    classes = np.random.default_rng(0).permutation(np.repeat(np.arange(5), counts)).astype("int32")
    chosen = choose_held_out(classes, 0.1, seed=3)
    assert np.bincount(classes[chosen]).tolist() == [1, 1, 2, 10, 4]
    np.testing.assert_array_equal(chosen, choose_held_out(classes, 0.1, seed=3))
    assert (chosen != choose_held_out(classes, 0.1, seed=4)).any()
    assert np.bincount(classes[~choose_held_out(classes, 0.99, seed=0)]).min() == 1


def test_several_labels_per_example_are_stratified_from_the_rarest():
    generator = np.random.default_rng(1)
    rows = (generator.random((997, 5)) < (0.02, 0.05, 0.1, 0.3, 0.6)).astype(np.int8)
    chosen = choose_held_out(rows, 0.2, seed=0)
    shares = rows[chosen].sum(axis=0) / rows.sum(axis=0)
    np.testing.assert_allclose(shares, 0.2, atol=0.03)
    assert chosen.mean() == pytest.approx(0.2, abs=0.02)
    # A label that occurs once is one to train on.
    once = np.zeros((10, 2), np.int8)
    once[4, 0] = 1
    assert not choose_held_out(once, 0.9, seed=0)[4]


def test_scores_are_split_at_random():
    chosen = choose_held_out(np.linspace(0, 1, 31, dtype=np.float32), 0.1, seed=0)
    assert chosen.sum() == 3


def test_a_class_with_one_example_is_refused():
    with pytest.raises(UserError, match="class 'b' has 1 example, expected 2 or more"):
        check_counts(np.array([0, 0, 1, 2, 2], np.int32), ("a", "b", "c"))
    with pytest.raises(UserError, match=r"for a score set --config\.task"):
        check_counts(np.array([0, 0, 1], np.int32), ("3", "17"))
