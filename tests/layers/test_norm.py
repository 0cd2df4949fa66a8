"""LayerNorm and RMSNorm against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.embeddings import LayerNorm, RMSNorm


def test_numbers_by_hand():
    params = {"scale": jnp.array([1.0, 2.0, 1.0]), "bias": jnp.array([0.0, 0.0, 10.0])}
    y = LayerNorm().apply({"params": params}, jnp.array([[1.0, 2.0, 6.0]]))
    # Mean 3, variance (4 + 1 + 9) / 3.
    deviation = (14 / 3) ** 0.5
    np.testing.assert_allclose(y, [[-2 / deviation, -2 / deviation, 10 + 3 / deviation]], rtol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-12, 0.5])
def test_values_and_gradients(epsilon, random, randomized, by_hand):
    x, probe = random(2, 3, 7), random(2, 3, 7)
    module = LayerNorm(epsilon)
    params = randomized(module, x)["params"]
    np.testing.assert_allclose(
        module.apply({"params": params}, x),
        by_hand.layer_norm(x, params, epsilon),
        rtol=1e-5,
        atol=1e-6,
    )
    gradient = jax.grad(lambda x: jnp.vdot(module.apply({"params": params}, x), probe))(x)
    for place in np.ndindex(2, 1, 7):
        nudge = np.zeros(x.shape)
        nudge[place] = 1e-5
        above = by_hand.layer_norm(np.asarray(x) + nudge, params, epsilon)
        below = by_hand.layer_norm(np.asarray(x) - nudge, params, epsilon)
        slope = np.vdot(above - below, probe) / 2e-5
        assert gradient[place] == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_statistics_are_float32_for_any_input(random):
    x = (100 + random(5, 257)).astype(jnp.bfloat16)
    module = LayerNorm()
    y = module.apply(module.init(jax.random.key(0), x), x)
    assert y.dtype == jnp.bfloat16
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    # Rounding of the result alone: half a unit in the eighth bit.
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, rtol=2**-8, atol=1e-3)


def test_layer_norm_is_initialised_as_plain_normalisation(random):
    variables = LayerNorm().init(jax.random.key(0), random(2, 7))
    assert np.all(variables["params"]["scale"].value == 1)
    assert np.all(variables["params"]["bias"].value == 0)
    assert variables["params"]["scale"].names == ("norm",)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_a_bias_there_is_no_bias(dtype, random, randomized, by_hand):
    x, module = random(2, 3, 7).astype(dtype), LayerNorm(1e-3, use_bias=False)
    params = randomized(module, x)["params"]
    assert set(params) == {"scale"}
    got = module.apply({"params": params}, x)
    assert got.dtype == dtype
    expected = by_hand.layer_norm(x, {**params, "bias": 0.0}, 1e-3)
    np.testing.assert_allclose(
        np.asarray(got, np.float64), expected, atol=1e-5 if dtype == "float32" else 0.02
    )


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("bfloat16", 0.02)])
@pytest.mark.parametrize("use_bias", [False, True])
def test_rms_norm(use_bias, dtype, atol, random, randomized):
    """The mean stays: it is not subtracted, neither from the input nor from its square."""
    x, module = (3 + random(2, 3, 7)).astype(dtype), RMSNorm(0.5, use_bias)
    params = randomized(module, x)["params"]
    assert set(params) == {"scale", "bias"} if use_bias else {"scale"}
    got = module.apply({"params": params}, x)
    assert got.dtype == dtype
    exact = np.asarray(x, np.float64)
    expected = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 0.5) * params["scale"]
    expected = expected + params.get("bias", 0.0)
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=atol)


def test_rms_norm_is_initialised_as_plain_normalisation(random):
    scale = RMSNorm().init(jax.random.key(0), random(2, 7))["params"]["scale"]
    assert np.all(scale.value == 1)
    assert scale.names == ("norm",)
