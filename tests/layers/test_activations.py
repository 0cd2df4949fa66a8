"""Activations by their names."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers.activations import activation


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


def test_an_unknown_activation():
    with pytest.raises(UserError, match="no activation 'gelo': did you mean 'gelu'"):
        activation("gelo")
