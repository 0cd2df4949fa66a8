"""Attention masks of every kind, and the masks of a batch."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import masks

TOKENS = jnp.array([[True, True, False], [True, False, False]])
PACK_IDS = jnp.array([[1, 1, 2, 0], [3, 1, 3, 3]])


def test_padding_hides_the_same_tokens_from_every_query():
    mask = masks.padding(TOKENS).array()
    assert mask.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(mask[:, 0, 0], TOKENS)


def test_a_visible_matrix_is_query_by_token():
    pairs = jnp.array([[[True, False], [True, True]]])
    mask = masks.visible_matrix(pairs).array()
    assert mask.shape == (1, 1, 2, 2)
    assert not mask[0, 0, 0, 1]
    assert mask[0, 0, 1, 0]


def test_packed_neighbours_are_separated():
    mask = masks.packed(PACK_IDS).array()
    assert mask.shape == (2, 1, 4, 4)
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(mask[0, 0], np.array(expected, bool))
    expected = [[1, 0, 1, 1], [0, 1, 0, 0], [1, 0, 1, 1], [1, 0, 1, 1]]
    np.testing.assert_array_equal(mask[1, 0], np.array(expected, bool))


def test_a_prefix_is_bidirectional_and_the_rest_causal():
    np.testing.assert_array_equal(masks.causal(3).array()[0, 0], [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    mask = masks.prefix(jnp.array([[True, True, False, False]]))
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    np.testing.assert_array_equal(mask[0], np.array(expected, bool))


def test_the_mask_of_a_batch_depends_on_the_rank_and_on_pack_ids():
    rank_two = masks.from_batch({"attention_mask": TOKENS})
    np.testing.assert_array_equal(rank_two.array(), TOKENS[:, None, None])
    pairs = jnp.arange(2 * 3 * 3).reshape(2, 3, 3) % 4 > 0
    rank_three = masks.from_batch({"attention_mask": pairs})
    np.testing.assert_array_equal(rank_three.array(), pairs[:, None])
    both = masks.from_batch({"attention_mask": TOKENS, "pack_ids": PACK_IDS[:, :3]}).array()
    expected = masks.padding(TOKENS).array() & masks.packed(PACK_IDS[:, :3]).array()
    assert both.shape == (2, 1, 3, 3)
    np.testing.assert_array_equal(both, expected)


def test_visible_tokens_are_those_that_any_query_attends_to():
    np.testing.assert_array_equal(masks.padding_mask(TOKENS), TOKENS)
    matrix = jnp.array([[[True, False, False], [True, True, False], [False] * 3]])
    np.testing.assert_array_equal(masks.padding_mask(matrix), [[True, True, False]])


def test_a_branch_attends_to_itself_and_its_entity_and_the_trunk_to_the_trunk():
    """K-BERT's figure 2: Tim Cook CEO Apple is visiting Beijing capital China is_a City now."""
    branches = jnp.array([[0, 0, 0, 1, 1, 0, 0, 0, 2, 2, 3, 3, 0]])
    entities = jnp.array([[0, 1, 1, 1, 1, 0, 0, 2, 2, 2, 2, 2, 0]])
    mask = np.asarray(masks.sentence_trees(branches, entities).array())
    assert mask.shape == (1, 1, 13, 13)
    trunk = {0, 1, 2, 5, 6, 7, 12}
    sees = {
        (0, 5, 6, 12): trunk,
        (1, 2): trunk | {3, 4},
        (3, 4): {1, 2, 3, 4},
        (7,): trunk | {8, 9, 10, 11},
        (8, 9): {7, 8, 9},
        (10, 11): {7, 10, 11},
    }
    for queries, expected in sees.items():
        for query in queries:
            assert set(np.flatnonzero(mask[0, 0, query])) == expected


def test_permuted_tokens_attend_to_earlier_and_to_unordered_tokens():
    earlier, itself = masks.order_masks(jnp.array([[2, -1, 0, -1, 1]]))
    expected = [[0, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 1, 0, 1, 0], [0, 1, 0, 1, 0], [0, 1, 1, 1, 0]]
    np.testing.assert_array_equal(earlier[0, 0], np.array(expected, bool))
    np.testing.assert_array_equal(itself[0, 0], np.eye(5, dtype=bool))


def test_a_mask_is_kept_in_compact_form():
    """So that kernels need no array: none is created before `array`."""
    mask = masks.causal(3) & masks.padding(TOKENS) & masks.packed(PACK_IDS[:, :3])
    assert (mask.causal, mask.pairs) == (3, None)
    np.testing.assert_array_equal(mask.key_mask, TOKENS)
    np.testing.assert_array_equal(mask.packed_segment_ids, PACK_IDS[:, :3])
    parts = [masks.padding(TOKENS), masks.packed(PACK_IDS[:, :3]), masks.causal(3)]
    expected = np.logical_and.reduce(np.broadcast_arrays(*(part.array() for part in parts)))
    np.testing.assert_array_equal(mask.array(), expected)
    assert mask.array().shape == (2, 1, 3, 3)


def test_two_masks_of_one_kind_are_intersected():
    other = jnp.array([[True, False, True], [True, True, False]])
    mask = masks.padding(TOKENS) & masks.padding(other)
    np.testing.assert_array_equal(
        mask.array()[:, 0, 0], [[True, False, False], [True, False, False]]
    )
    lower = jnp.tril(jnp.ones((1, 3, 3), bool))
    mask = masks.visible_matrix(lower) & masks.visible_matrix(lower.mT)
    np.testing.assert_array_equal(mask.array()[0, 0], np.eye(3, dtype=bool))


def test_the_mean_excludes_padding():
    sequence = jnp.array([[[1.0, 5.0], [3.0, 9.0], [100.0, jnp.nan]], [[2.0, 4.0], [7, 7], [8, 8]]])
    np.testing.assert_array_equal(masks.mean(sequence, TOKENS), [[2.0, 7.0], [2.0, 4.0]])
    nothing = jnp.zeros_like(TOKENS)
    np.testing.assert_array_equal(masks.mean(sequence, nothing), np.zeros((2, 2)))


def test_masks_that_cannot_be_combined_are_refused():
    with pytest.raises(ValueError, match="both have packed_segment_ids"):
        masks.packed(PACK_IDS) & masks.packed(PACK_IDS)
    with pytest.raises(ValueError, match="causal masks of different lengths: got 3 and 4"):
        masks.causal(3) & masks.causal(4)


def test_a_window_is_a_band_around_the_diagonal():
    np.testing.assert_array_equal(
        masks.window(4, 3).array()[0, 0], [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    )
    np.testing.assert_array_equal(masks.window(7, 4).array(), masks.window(7, 5).array())
    np.testing.assert_array_equal(masks.window(7, 1).array()[0, 0], np.eye(7, dtype=bool))
    mask = masks.padding(TOKENS) & masks.window(3, 2) & masks.causal(3)
    assert mask.pairs is None
    expected = TOKENS[:, None, None] & np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], bool)
    np.testing.assert_array_equal(mask.array(), expected)


def test_impossible_windows_are_refused():
    with pytest.raises(ValueError, match=r"different windows: got \(7, 4\) and \(7, 3\)"):
        masks.window(7, 4) & masks.window(7, 3)
    with pytest.raises(ValueError, match="got 0, expected an integer >= 1"):
        masks.window(7, 0)
