"""The weighted sum of layers, by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.layers.heads import ScalarMix

LAYERS = [jnp.asarray(np.random.default_rng(n).normal(size=(2, 3, 5)), jnp.float32) for n in (0, 1)]


def test_a_scalar_mix_is_initialised_as_the_mean():
    mixed, variables = ScalarMix().init_with_output(jax.random.key(0), LAYERS)
    np.testing.assert_allclose(mixed, (LAYERS[0] + LAYERS[1]) / 2, atol=1e-6)
    assert {name: leaf.shape for name, leaf in variables["params"].items() if name == "gamma"} == {
        "gamma": ()
    }


def test_weights_and_gamma_by_hand():
    params = {"weights": jnp.log(jnp.asarray([1.0, 3.0])), "gamma": jnp.asarray(2.0)}
    mixed = ScalarMix().apply({"params": params}, LAYERS)
    np.testing.assert_allclose(mixed, 0.5 * LAYERS[0] + 1.5 * LAYERS[1], atol=1e-5)


def test_normalised_layers_have_no_scale():
    params = {"weights": jnp.zeros(2), "gamma": jnp.asarray(1.0)}
    scaled = [4.0 * LAYERS[0] + 3.0, LAYERS[1]]
    got, expected = (
        ScalarMix(layer_norm=True).apply({"params": params}, layers) for layers in (scaled, LAYERS)
    )
    np.testing.assert_allclose(got, expected, atol=1e-5)
