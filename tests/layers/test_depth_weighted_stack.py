"""Depth-weighted sums: derivatives with rematerialisation, dropout masks, initial weights."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers.dense import Dense
from bertjax.layers.depth_weighted_stack import DepthWeightedStack, init_weights
from bertjax.layers.dropout import Dropout

B, L, D, N = 2, 3, 5, 3


class Halves(nn.Module):
    """Both halves have the same submodule; the second one only adds 1, dropped out."""

    @nn.compact
    def add_attention(self, x, mask, *, train):
        ones = Dropout(0.5, name="dropout")(jnp.ones_like(x), train=train)
        return x + jnp.tanh(Dense((D,), (None, None), name="dense")(x)) * mask + ones

    @nn.compact
    def add_feed_forward(self, x, mask, *, train):
        return x + Dropout(0.5, name="dropout")(jnp.ones_like(x), train=train)

    def __call__(self, x, mask, *, train):
        return self.add_feed_forward(self.add_attention(x, mask, train=train), mask, train=train)


def stack(**fields):
    return DepthWeightedStack(Halves(), N, **fields)


def test_sums_and_their_derivatives_are_those_of_a_loop(random, randomized):
    x, probe = random(B, L, D), random(B, L, D)
    variables = randomized(stack(), x, 2.0, train=False)

    def loop(params):
        outputs, y, weights, states = [x], x, params["depth_weights"], []
        for layer in range(N):
            own = {"params": jax.tree.map(lambda leaf, at=layer: leaf[at], params["block"])}
            for half in ("add_attention", "add_feed_forward"):
                outputs.append(Halves().apply(own, y, 2.0, train=False, method=half))
                size = len(outputs)
                y = jnp.einsum("n,nbld->bld", weights[:size], jnp.stack(outputs))
                weights = weights[size:]
            states.append(y)
        return jnp.vdot(y, probe), jnp.stack(states)

    def derivatives(function):
        """The result, its gradient, and a product with the Hessian."""

        def product(params):
            gradient = jax.grad(lambda params: function(params)[0])(params)
            return sum(jnp.vdot(leaf, jnp.cos(leaf)) for leaf in jax.tree.leaves(gradient))

        value_and_grad = jax.value_and_grad(function, has_aux=True)
        run = jax.jit(lambda params: (value_and_grad(params), jax.grad(product)(params)))
        return run(variables["params"])

    expected = derivatives(loop)
    for fields in ({}, {"remat": "full"}, {"unroll": N}):
        module = stack(keep_hidden_states=True, **fields)

        def found(params, module=module):
            y, states = module.apply({"params": params}, x, 2.0, train=False)
            return jnp.vdot(y, probe), states

        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
            derivatives(found),
            expected,
        )


def test_halves_and_layers_have_dropout_masks_of_their_own():
    """The same masks everywhere would give multiples of 2N."""
    module, x = stack(keep_hidden_states=True), jnp.zeros((1, 40, D))
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    run = jax.jit(lambda rngs: module.init_with_output(rngs, x, 0.0, train=True))
    (_, states), _ = run(rngs)
    assert set(np.unique(states[0])) == {0.0, 2.0, 4.0}
    assert set(np.unique(states[1] - states[0])) == {0.0, 2.0, 4.0}
    assert (states[1] - states[0] != states[0]).any()


def test_initial_weights():
    np.testing.assert_array_equal(init_weights(jax.random.key(0), 3), [0, 1, 0, 0, 1, 0, 0, 0, 1])


def test_an_unknown_remat_policy_is_one_line(random):
    with pytest.raises(UserError, match="no remat policy 'ful'"):
        stack(remat="ful").init(jax.random.key(0), random(B, L, D), 1.0, train=False)
