"""Activation functions, by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.errors import UserError
from bertjax.layers.dense import activation


@pytest.mark.parametrize(
    ("name", "values"),
    [
        # x Phi(x) at -3, -1, 0, 0.5, 2, from tables of the normal distribution.
        ("gelu", [-0.00404970, -0.15865525, 0.0, 0.34573123, 1.95449974]),
        ("gelu_new", [-0.00363739, -0.15880801, 0.0, 0.34571401, 1.95459769]),
        ("relu", [0.0, 0.0, 0.0, 0.5, 2.0]),
        ("silu", [-0.14227762, -0.26894142, 0.0, 0.31122967, 1.76159416]),
        ("tanh", [-0.99505475, -0.76159416, 0.0, 0.46211716, 0.96402758]),
    ],
)
def test_activations(name, values):
    x = jnp.array([-3.0, -1.0, 0.0, 0.5, 2.0])
    np.testing.assert_allclose(activation(name)(x), values, atol=5e-7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # At -3, where the two forms of gelu are furthest apart: as in transformers.
        ("gelu_python", -0.00404970),
        ("gelu_pytorch_tanh", -0.00363739),
        ("gelu_python_tanh", -0.00363739),
        ("gelu_accurate", -0.00363739),
        ("gelu_fast", -0.00363739),
        ("swish", -0.14227762),
    ],
)
def test_other_names_of_activations(name, value):
    assert float(activation(name)(jnp.float32(-3.0))) == pytest.approx(value, abs=5e-7)


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "silu"])
def test_in_bfloat16_only_the_result_is_rounded(name):
    x = jnp.linspace(-6, 6, 401).astype(jnp.bfloat16)
    exact, slope = jax.vjp(activation(name), x.astype(jnp.float32))
    found, own_slope = jax.vjp(activation(name), x)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))
    (expected,), (got,) = slope(jnp.ones(401)), own_slope(jnp.ones(401, jnp.bfloat16))
    np.testing.assert_allclose(got.astype(jnp.float32), expected, atol=2**-8)


def test_gelu_equals_the_formula_with_erfc():
    x = np.linspace(-8, 8, 4001)
    expected = 0.5 * x * scipy.special.erfc(-x / np.sqrt(2))
    np.testing.assert_allclose(activation("gelu")(jnp.asarray(x, jnp.float32)), expected, atol=1e-6)


def test_an_unknown_activation():
    with pytest.raises(UserError, match="no activation 'gelo': did you mean 'gelu'"):
        activation("gelo")
