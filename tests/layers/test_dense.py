"""Dense layers over several axes, and BERT's initialiser."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.dense import PRECISIONS, Dense, add_bias, truncated_normal


def test_numbers_by_hand():
    dense = Dense((2,), ("embed", "mlp"))
    parameters = {"kernel": jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
    parameters["bias"] = jnp.array([0.5, -1.0])
    y = dense.apply({"params": parameters}, jnp.array([[1.0, 0.0, -1.0], [2.0, 1.0, 0.0]]))
    np.testing.assert_array_equal(y, [[-3.5, -5.0], [5.5, 7.0]])


@pytest.mark.parametrize(
    ("features", "axes", "contracted", "shape", "subscripts"),
    [
        ((5,), ("embed", "mlp"), 1, (2, 3, 7), "bld,df->blf"),
        ((5, 11), ("embed", "heads", "kv"), 1, (2, 3, 7), "bld,dhk->blhk"),
        ((7,), ("heads", "kv", "embed"), 2, (2, 3, 5, 11), "blhk,hkd->bld"),
        ((5, 3), ("heads", "kv", "embed", None), 2, (7, 11), "hk,hkde->de"),
        ((5,), ("embed", "mlp"), 1, (7,), "d,df->f"),
    ],
)
def test_several_axes_are_one_einsum(
    features, axes, contracted, shape, subscripts, random, randomized
):
    dense = Dense(features, axes, contracted=contracted)
    x = random(*shape)
    boxed = jax.eval_shape(dense.init, jax.random.key(0), x)["params"]
    assert boxed["kernel"].names == axes
    assert boxed["bias"].names == axes[contracted:]
    params = randomized(dense, x)["params"]
    assert params["kernel"].shape == (*shape[-contracted:], *features)
    expected = np.einsum(subscripts, x, params["kernel"]) + params["bias"]
    np.testing.assert_allclose(dense.apply({"params": params}, x), expected, rtol=1e-5, atol=1e-5)


def test_without_bias(random):
    dense = Dense((5,), ("embed", "mlp"), use_bias=False)
    assert set(dense.init(jax.random.key(0), random(2, 7))["params"]) == {"kernel"}


@pytest.mark.parametrize("name", PRECISIONS)
def test_parameters_stay_float32_and_results_have_the_type_of_the_precision(name, random):
    dense = Dense((5,), ("embed", "mlp"), precision=PRECISIONS[name])
    y, variables = dense.init_with_output(jax.random.key(0), random(2, 7))
    assert {x.dtype for x in jax.tree.leaves(variables)} == {jnp.dtype(jnp.float32)}
    assert y.dtype == PRECISIONS[name].activations


def test_kernels_are_initialised_from_a_truncated_normal():
    dense = Dense((400,), ("embed", "mlp"), initializer_range=0.05)
    params = nn.meta.unbox(dense.init(jax.random.key(0), jnp.zeros((1, 500))))["params"]
    kernel = np.asarray(params["kernel"], np.float64)
    assert np.abs(kernel).max() <= 0.1
    # A standard normal truncated at 2 has a deviation of 0.8796; 200,000 samples give 3e-3.
    assert kernel.std() == pytest.approx(0.05 * 0.8796, rel=5e-3)
    assert abs(kernel.mean()) < 5 * kernel.std() / np.sqrt(kernel.size)
    assert np.all(params["bias"] == 0)


def test_the_initialiser_has_the_quantiles_of_the_truncated_normal():
    samples = np.sort(truncated_normal(1.0)(jax.random.key(1), (100_000,)))
    # Phi(1) - Phi(0) of Phi(2) - Phi(-2): 0.341345 / 0.954500.
    assert np.mean((samples > 0) & (samples < 1)) == pytest.approx(0.341345 / 0.9545, abs=6e-3)
    assert np.mean(samples < 0) == pytest.approx(0.5, abs=6e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16_operands"])
def test_a_rematerialised_input_has_the_same_gradient(precision, random, randomized):
    dense, x = Dense((5,), ("embed", "mlp"), precision=PRECISIONS[precision]), random(2, 3, 7)
    params, probe = randomized(dense, x), random(2, 3, 5)

    def total(through, params, x):
        return jnp.sum(probe * through(params, x))

    def inside(params, x):
        return dense.apply(params, x, input_activation=jnp.tanh)

    def before(params, x):
        return dense.apply(params, jnp.tanh(x))

    got, expected = (jax.grad(total, (1, 2))(through, params, x) for through in (inside, before))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected)
    np.testing.assert_array_equal(inside(params, x), before(params, x))


def test_the_gradient_of_a_wide_bias_is_the_sum_over_rows(random):
    x, bias, gradient = random(3, 5, 40), random(40), random(3, 5, 40)
    y, pull_back = jax.vjp(add_bias, x, bias)
    to_x, to_bias = pull_back(gradient)
    np.testing.assert_array_equal(y, x + bias)
    np.testing.assert_array_equal(to_x, gradient)
    np.testing.assert_allclose(to_bias, gradient.sum(axis=(0, 1)), atol=1e-5)


def test_the_gradient_of_a_bias_of_several_axes_has_its_shape(random):
    gradient = random(3, 5, 40)
    _, pull_back = jax.vjp(add_bias, random(3, 5, 40), random(5, 40))
    np.testing.assert_allclose(pull_back(gradient)[1], gradient.sum(axis=0), atol=1e-5)
