"""A scanned stack equals a loop over its layers, however it is compiled."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.dense import Dense
from bertjax.layers.dropout import Dropout
from bertjax.layers.stack import REMAT_POLICIES, Stack

B, L, D, N = 2, 5, 6, 3
MASK = masks.padding(jnp.arange(L) < jnp.array([[3], [5]]))


def block(dropout=0.0):
    return PostNormBlock(SelfAttention(3, dropout), FeedForward(11), dropout)


def stack(dropout=0.0, **fields):
    return Stack(block(dropout), N, **fields)


class Layer(nn.Module):
    """A cheap block: the tests of the stack do not depend on the computation of a layer."""

    @nn.compact
    def __call__(self, x, mask, *, train):
        hidden = jnp.where(mask.key_mask[..., None], nn.tanh(Dense((11,), ("embed", "mlp"))(x)), 0)
        return x + Dropout(0.2)(Dense((D,), ("mlp", "embed"))(hidden), train=train)


@pytest.fixture
def x(random):
    return random(B, L, D)


@pytest.fixture(scope="module")
def boxed():
    x = jnp.zeros((B, L, D))
    return jax.jit(lambda key: stack().init(key, x, MASK, train=False))(jax.random.key(0))


@pytest.fixture
def params(x, randomized):
    return randomized(stack(), x, MASK, train=False)


def layer(params, index):
    return {"params": jax.tree.map(lambda leaf: leaf[index], params["params"]["block"])}


def test_parameters_carry_a_leading_axis_of_layers(boxed):
    block = boxed["params"]["block"]
    assert block["attention"]["query"]["kernel"].names == ("layers", "embed", "heads", "kv")
    assert block["attention"]["query"]["kernel"].value.shape == (N, D, 3, 2)
    assert block["attention_norm"]["scale"].names == ("layers", "norm")


def test_layers_are_initialised_differently(boxed):
    kernel = boxed["params"]["block"]["feed_forward"]["intermediate"]["kernel"]
    kernel = np.asarray(kernel.value)
    assert len(np.unique(kernel)) > 0.99 * kernel.size


@pytest.mark.parametrize("unroll", [1, 2, 100])
def test_it_equals_a_loop_over_blocks(unroll, x, params):
    expected, states = x, []
    for index in range(N):
        expected = block().apply(layer(params, index), expected, MASK, train=False)
        states.append(expected)
    module = stack(unroll=unroll, keep_hidden_states=True)
    got, hidden_states = module.apply(params, x, MASK, train=False)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(hidden_states, states, rtol=1e-5, atol=1e-5)


def test_hidden_states_are_returned_only_on_request(x, params):
    assert stack().apply(params, x, MASK, train=False)[1] is None


@pytest.mark.slow
def test_every_remat_policy_and_unrolling_has_the_same_gradient(x, random, randomized):
    probe = random(B, L, D)
    params = randomized(Stack(Layer(), N), x, MASK, train=False)

    def gradient(**fields):
        def loss(params, x):
            module = Stack(Layer(), N, **fields)
            rngs = {"dropout": jax.random.key(5)}
            return jnp.vdot(module.apply(params, x, MASK, train=True, rngs=rngs)[0], probe)

        return jax.jit(jax.grad(loss, (0, 1)))(params, x)

    expected = gradient()
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(expected))
    others = [{"remat": policy} for policy in REMAT_POLICIES if policy != "none"]
    for fields in [*others, {"unroll": N}, {"remat": "full", "unroll": N}]:
        for got, leaf in zip(
            jax.tree.leaves(gradient(**fields)), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(got, leaf, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unroll", [1, N])
def test_remat_recomputes(unroll, x, randomized):
    params = randomized(Stack(Layer(), N), x, MASK, train=False)

    def tanhs(remat):
        def loss(params):
            module = Stack(Layer(), N, remat=remat, unroll=unroll)
            return jnp.square(module.apply(params, x, MASK, train=False)[0]).sum()

        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        return compiled.cost_analysis()["transcendentals"]

    assert tanhs("full") == 2 * tanhs("none")


def test_dropout_differs_from_layer_to_layer(random):
    class Dropping(nn.Module):
        @nn.compact
        def __call__(self, x, mask, *, train):
            return jax.random.uniform(self.make_rng("dropout"), x.shape)

    module = Stack(Dropping(), N, keep_hidden_states=True)
    draws = module.apply(
        {}, random(B, L, D), MASK, train=True, rngs={"dropout": jax.random.key(0)}
    )[1]
    assert len(np.unique(draws)) == draws.size


def test_an_unknown_policy(x):
    with pytest.raises(UserError, match="no remat policy 'ful': did you mean 'full'"):
        stack(remat="ful").init(jax.random.key(0), x, MASK, train=False)
