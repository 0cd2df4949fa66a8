"""The custom gradient of masked softmax attention equals that of the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.attention import masked_softmax_attention, scaled_scores
from bertjax.layers.dense import PRECISIONS, Precision
from bertjax.layers.dropout import DropoutMask

B, H, L, M, K = 2, 3, 5, 7, 4
MASKS = {
    "all": jnp.ones((1, 1, 1, M), bool),
    "padding": jnp.arange(M) < jnp.array([3, 7])[:, None, None, None],
    "rows without keys": (jnp.arange(M) < jnp.arange(L)[:, None])[None, None],
}


def formula(scores, mask, dropout_mask, value):
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    weights = jnp.where(mask, weights, 0.0)
    if dropout_mask is not None:
        weights = weights * dropout_mask.keep * dropout_mask.scale
    return jnp.einsum("bhlm,bmhk->blhk", weights, value)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_values_and_gradients_equal_the_formula(kind, dropout, random):
    scores, value, probe = random(B, H, L, M), random(B, M, H, K), random(B, L, H, K)
    mask, dropout_mask = (
        MASKS[kind],
        DropoutMask(random(B, H, L, M) > -0.5, 1.25) if dropout else None,
    )
    has_keys = mask.any(-1, keepdims=True)

    def expected(scores, value):
        # Where all is hidden the formula divides zero by zero.
        return jnp.sum(
            probe * formula(scores, mask | ~has_keys, _mask_rows(has_keys, dropout_mask), value)
        )

    def got(scores, value):
        return jnp.sum(
            probe * masked_softmax_attention(scores, mask, dropout_mask, value, Precision())
        )

    for one, other in zip(
        jax.value_and_grad(got, (0, 1))(scores, value)[1],
        jax.value_and_grad(expected, (0, 1))(scores, value)[1],
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got(scores, value), expected(scores, value), rtol=1e-5)


def _mask_rows(has_keys, dropout_mask):
    """Drop all weights of rows without visible keys."""
    if dropout_mask is None:
        return DropoutMask(jnp.broadcast_to(has_keys, (B, H, L, M)), 1.0)
    return DropoutMask(dropout_mask.keep & has_keys, dropout_mask.scale)


def test_matmuls_of_the_mixed_precision_compile_in_every_layout(random):
    query, key, value = (random(2, 8, 3, 4) for _ in range(3))

    def total(query, key, value, precision):
        scores = scaled_scores(query, key, precision)
        everything = jnp.ones((1, 1, 1, 8), bool)
        context = masked_softmax_attention(scores, everything, None, value, precision)
        return jnp.sum(jnp.sin(context))

    gradients = jax.jit(jax.grad(total, (0, 1, 2)), static_argnums=3)
    mixed = gradients(query, key, value, PRECISIONS["bfloat16_operands"])
    for found, expected in zip(mixed, gradients(query, key, value, Precision()), strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_masked_scores_have_no_gradient(random):
    scores, value = random(B, H, L, M), random(B, M, H, K)
    mask = MASKS["padding"]
    scores = jnp.where(mask, scores, 1e9)

    def total(scores):
        return jnp.sum(jnp.square(masked_softmax_attention(scores, mask, None, value, Precision())))

    gradient = jax.grad(total)(scores)
    assert np.all(np.asarray(gradient)[~np.broadcast_to(mask, gradient.shape)] == 0)
    assert np.all(np.asarray(gradient)[np.broadcast_to(mask, gradient.shape)] != 0)
