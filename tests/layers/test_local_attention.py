"""Local attention in blocks equals attention to all keys with a banded mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import local_attention, masks
from bertjax.layers.attention import masked_softmax_attention, scaled_scores
from bertjax.layers.dense import Precision

B, H, K = 2, 3, 5


def by_band(query, key, value, mask):
    return masked_softmax_attention(
        scaled_scores(query, key, Precision()), mask.array(), None, value, Precision()
    )


def in_blocks(query, key, value, mask):
    length = query.shape[1]
    query, key, value, visible = local_attention.split(query, key, value, mask)
    context = masked_softmax_attention(
        scaled_scores(query, key, Precision()), visible, None, value, Precision()
    )
    return local_attention.merge(context, length, B)


@pytest.mark.parametrize(
    ("length", "width"),
    [
        (17, 4),
        (13, 7),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(16, 4), (4, 1), (11, 6)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["padding", "packed"])
def test_outputs_and_gradients_equal_those_with_a_band(length, width, kind, random):
    if kind == "padding":
        mask = masks.padding(jnp.arange(length) < jnp.array([[length], [length - 3]]))
    else:
        documents = jnp.array([3 * [1] + (length - 3) * [2], (length - 2) * [5] + 2 * [0]])
        mask = masks.packed(documents)
    mask = mask & masks.window(length, width)
    assert local_attention.is_applicable(mask)
    arrays, probe = [random(B, length, H, K) for _ in range(3)], random(B, length, H, K)

    def loss(attend):
        def total(*arrays):
            context = attend(*arrays)
            return jnp.vdot(context, probe), context

        return jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)

    found = loss(lambda *arrays: in_blocks(*arrays, mask))(*arrays)
    expected = loss(lambda *arrays: by_band(*arrays, mask))(*arrays)
    for got, gradient in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, gradient, rtol=1e-5, atol=1e-5)


def test_conditions_for_attention_in_blocks():
    tokens = masks.padding(jnp.ones((1, 384), bool))
    assert not local_attention.is_applicable(tokens)
    assert not local_attention.is_applicable(tokens & masks.window(384, 257))
    assert local_attention.is_applicable(tokens & masks.window(384, 255))
    pairs = masks.visible_matrix(jnp.ones((1, 384, 384), bool))
    assert not local_attention.is_applicable(pairs & masks.window(384, 4))
    assert not local_attention.is_applicable(masks.causal(384) & masks.window(384, 4))
