"""Frozen modules: no gradient reaches their parameters."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.dense import Dense
from bertjax.layers.layer_choice import Frozen
from bertjax.train.report import flops, training_flops

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)
INNER = functools.partial(Dense, (7,), (None, None), parent=None)


class Outer(nn.Module):
    """A module that applies a frozen module, then a trained one."""

    @nn.compact
    def __call__(self, x):
        inner = Frozen(INNER, name="teacher")(lambda module, x: module(x), x)
        return Dense((2,), (None, None), name="own")(inner)


@pytest.fixture(scope="module")
def variables():
    return nn.meta.unbox(Outer().init(jax.random.key(3), X))


def test_frozen_parameters_are_a_separate_collection(variables):
    assert jax.tree.map(jnp.shape, variables) == {
        "params": {"own": {"kernel": (7, 2), "bias": (2,)}},
        "frozen": {"teacher": {"params": {"kernel": (5, 7), "bias": (7,)}}},
    }
    boxed = jax.eval_shape(lambda: Outer().init(jax.random.key(3), X))
    kernel = boxed["frozen"]["teacher"]["params"]["kernel"]
    assert kernel.names == (None, None)


def test_outputs_are_equal_and_have_no_gradient(variables):
    inner, own = variables["frozen"]["teacher"]["params"], variables["params"]["own"]
    expected = (X @ inner["kernel"] + inner["bias"]) @ own["kernel"] + own["bias"]
    np.testing.assert_allclose(Outer().apply(variables, X), expected, rtol=1e-5)

    def loss(variables, x):
        return jnp.square(Outer().apply(variables, x)).sum()

    gradient, to_input = jax.grad(loss, argnums=(0, 1))(variables, X)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient["frozen"]))
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient["params"]))
    assert np.all(to_input == 0)


def test_a_frozen_module_has_no_backward_pass(variables):
    frozen, own = 2 * 3 * 5 * 7, 2 * 3 * 7 * 2
    assert flops(Outer().apply, variables, X) == frozen + own
    assert training_flops(Outer().apply, variables, X) == frozen + 3 * own
