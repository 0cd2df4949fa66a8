"""ALiBi: published slopes, biases, and attention with them against the formula."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.position_encodings import Alibi

B, L, H, K = 2, 11, 3, 5


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, np.arange(1, 17) / 2),
        # `get_slopes(12)` of the released code, to three digits: 0.5 ... 0.00391, then 0.707,
        # 0.354, 0.177 and 0.0884.
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (3, [4, 8, 2]),
        (1, [8]),
    ],
)
def test_slopes(heads, exponents):
    np.testing.assert_allclose(Alibi(heads).slopes, 2.0 ** -np.asarray(exponents), rtol=1e-12)


def test_biases_fall_symmetrically_with_the_distance():
    got = Alibi(3)(4)
    np.testing.assert_array_equal(np.diagonal(got, axis1=1, axis2=2), 0)
    np.testing.assert_allclose(got[0, 0], [0, -1 / 16, -2 / 16, -3 / 16])
    np.testing.assert_allclose(got[2, 2], [-2 / 4, -1 / 4, 0, -1 / 4])


MASKS = {
    "padding": masks.padding(jnp.arange(L) < jnp.array([[9], [L]])),
    "packed": masks.packed(jnp.array([[1] * 4 + [2] * 6 + [0], [5] * 2 + [7] * 9])),
}


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("kind", MASKS)
def test_attention_equals_the_formula(kind, window, random, randomized):
    """A window of 3 is short enough for attention in blocks, which would leave out the biases."""
    mask, x = MASKS[kind], random(B, L, H * K)
    module = SelfAttention(H, use_bias=False, alibi=Alibi(H), window=window)
    params = randomized(module, x, mask, train=False)
    kernels = {name: np.asarray(part["kernel"]) for name, part in params["params"].items()}
    query, key, value = (
        np.einsum("bld,dhk->bhlk", x, kernels[name]) for name in ("query", "key", "value")
    )
    distances = np.abs(np.arange(L)[:, None] - np.arange(L))
    scores = query @ np.swapaxes(key, 2, 3) / np.sqrt(K)
    for head, slope in enumerate((1 / 16, 1 / 256, 1 / 4)):
        scores[:, head] -= slope * distances
    visible = np.broadcast_to(mask.array(), scores.shape) & (not window or distances <= 1)
    got = module.apply(params, x, mask, method="scores")
    np.testing.assert_allclose(got, np.where(visible, scores, 0), rtol=1e-4, atol=1e-4)
    weights = scipy.special.softmax(np.where(visible, scores, -1e9), axis=-1)
    expected = np.einsum("bhlk,hkd->bld", weights @ value, kernels["output"])
    got = module.apply(params, x, mask, train=False)
    has_keys = visible.any(axis=(1, 3))
    np.testing.assert_allclose(got[has_keys], expected[has_keys], rtol=1e-4, atol=1e-4)


def test_a_fused_kernel_is_not_used_with_biases(random, randomized):
    """Requested where it would be interpreted, it would leave them out."""
    mask, x = masks.padding(jnp.ones((1, 128), bool)), random(1, 128, 8)
    plain, requested = (
        SelfAttention(1, alibi=Alibi(1), kernel=kernel) for kernel in ("", "splash")
    )
    params = randomized(plain, x, mask, train=False)
    got = requested.apply(params, x, mask, train=False)
    np.testing.assert_array_equal(got, plain.apply(params, x, mask, train=False))
