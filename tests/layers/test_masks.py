"""Every kind of mask, and what a batch asks for."""

import jax.numpy as jnp
import numpy as np

from bertjax.layers import masks

TOKENS = jnp.array([[True, True, False], [True, False, False]])
PACKS = jnp.array([[1, 1, 2, 0], [3, 1, 3, 3]])


def test_padding_hides_the_same_tokens_from_every_query():
    mask = masks.padding(TOKENS)
    assert mask.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(mask[:, 0, 0], TOKENS)


def test_a_visible_matrix_is_query_by_token():
    pairs = jnp.array([[[True, False], [True, True]]])
    mask = masks.visible_matrix(pairs)
    assert mask.shape == (1, 1, 2, 2)
    assert not mask[0, 0, 0, 1]
    assert mask[0, 0, 1, 0]


def test_packed_neighbours_see_themselves_alone():
    mask = masks.packed(PACKS)
    assert mask.shape == (2, 1, 4, 4)
    wanted = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(mask[0, 0], np.array(wanted, bool))
    wanted = [[1, 0, 1, 1], [0, 1, 0, 0], [1, 0, 1, 1], [1, 0, 1, 1]]
    np.testing.assert_array_equal(mask[1, 0], np.array(wanted, bool))


def test_a_batch_asks_by_rank_and_by_packs():
    rank_two = masks.from_batch({"attention_mask": TOKENS})
    np.testing.assert_array_equal(rank_two, masks.padding(TOKENS))
    pairs = jnp.arange(2 * 3 * 3).reshape(2, 3, 3) % 4 > 0
    rank_three = masks.from_batch({"attention_mask": pairs})
    np.testing.assert_array_equal(rank_three, masks.visible_matrix(pairs))
    both = masks.from_batch({"attention_mask": TOKENS, "pack_ids": PACKS[:, :3]})
    wanted = masks.padding(TOKENS) & masks.packed(PACKS[:, :3])
    assert both.shape == (2, 1, 3, 3)
    np.testing.assert_array_equal(both, wanted)


def test_tokens_that_are_there_are_those_that_anything_sees():
    np.testing.assert_array_equal(masks.tokens(TOKENS), TOKENS)
    matrix = jnp.array([[[True, False, False], [True, True, False], [False] * 3]])
    np.testing.assert_array_equal(masks.tokens(matrix), [[True, True, False]])
