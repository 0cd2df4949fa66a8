"""Sinusoidal position embeddings: the formula and its properties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.embeddings import ScaledSinusoids, sinusoidal, sinusoids


def test_sinusoids_equal_the_formula():
    table = sinusoids(7, 6)
    assert table.shape == (7, 6)
    for position in range(7):
        angles = [position / 10_000 ** (exponent / 6) for exponent in (0, 2, 4)]
        np.testing.assert_allclose(table[position, :3], np.sin(angles), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(table[position, 3:], np.cos(angles), rtol=1e-5, atol=1e-7)


def test_an_odd_width_leaves_out_the_last_cosine():
    assert sinusoids(5, 7).shape == (5, 7)
    np.testing.assert_allclose(sinusoids(5, 7)[3, :4], np.sin(3 * 10_000 ** (-np.arange(4) / 3.5)))


def test_the_dot_product_of_two_positions_depends_on_their_distance_alone():
    table = sinusoids(40, 16)
    products = table @ table.T
    for distance in (0, 1, 5, 23):
        along = np.diagonal(products, distance)
        np.testing.assert_allclose(along, along[0], rtol=1e-4)
    assert products[0, 0] > products[0, 1] > products[0, 2]


@pytest.mark.parametrize("stddev", [0.02, 0.08])
def test_the_initialiser_is_a_multiple_of_them(stddev):
    table = sinusoidal(stddev)(jax.random.key(0), (11, 6), jnp.float32)
    assert table.dtype == jnp.float32
    np.testing.assert_allclose(table, 2 * stddev * sinusoids(11, 6), rtol=1e-6)


def test_scaled_sinusoids_have_one_parameter():
    """Initially the norm of a vector is sqrt(1 / 2); ids may be in any order."""
    module, ids = ScaledSinusoids(11, 6), jnp.array([[4, 0, 10]])
    params = module.init(jax.random.key(0), ids)["params"]
    assert {name: leaf.shape for name, leaf in params.items()} == {"scale": ()}
    got = module.apply({"params": params}, ids)
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), np.full((1, 3), 0.5**0.5), rtol=1e-6)
    twice = module.apply({"params": {"scale": jnp.array(2.0)}}, ids)
    np.testing.assert_allclose(twice[0], 2 * sinusoids(11, 6)[[4, 0, 10]], rtol=1e-6)
