"""AlternatingStack equals a loop over its layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers import masks
from bertjax.layers.alternating_stack import AlternatingStack
from bertjax.layers.attention import SelfAttention
from bertjax.layers.blocks import FeedForward, PreNormBlock
from bertjax.layers.dense import Dense
from bertjax.layers.position_encodings import Rotary
from bertjax.layers.stack import Stack

B, L, D = 2, 7, 12
MASK = masks.padding(jnp.arange(L) < jnp.array([[5], [7]]))


def block(window=0, theta=50.0, dropout=0.0):
    attention = SelfAttention(3, dropout, use_bias=False, rotary=Rotary(theta), window=window)
    feed_forward = FeedForward(11, use_bias=False, gated=True)
    return PreNormBlock(attention, feed_forward, dropout, norm_bias=False)


GLOBAL, LOCAL = block(), block(window=3, theta=5.0)


def modernbert(num_layers, **fields):
    """(global, local, local, global, ...), as published."""
    return AlternatingStack((GLOBAL, LOCAL, LOCAL), num_layers, **fields)


@pytest.fixture
def x(random):
    return random(B, L, D)


@pytest.mark.parametrize(
    ("num_layers", "fields"),
    [
        (5, {}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (7, {"unroll": 6}),
                (6, {}),
                (2, {}),
                (7, {"remat": "full"}),
                (7, {"unroll": 100}),
            ]
        ),
    ],
)
def test_layers_alternate(num_layers, fields, x, random, randomized):
    """Outputs, hidden states and gradients equal those of a loop with banded masks."""
    module = modernbert(num_layers, keep_hidden_states=True, **fields)
    params, probe = randomized(module, x, MASK, train=False, scale=0.3), random(B, L, D)
    band = np.abs(np.arange(L)[:, None] - np.arange(L)) <= 1
    banded = masks.visible_matrix(jnp.asarray(band)[None] & MASK.array()[:, 0])

    def by_hand(params):
        y, states = x, []
        for number in range(num_layers):
            own = jax.tree.map(lambda leaf, at=number: leaf[at], params["params"]["block"])
            one, mask = (block(), MASK) if number % 3 == 0 else (block(theta=5.0), banded)
            y = one.apply({"params": own}, y, mask, train=False)
            states.append(y)
        return jnp.vdot(y, probe), jnp.stack(states)

    def stacked(params):
        y, states = module.apply(params, x, MASK, train=False)
        return jnp.vdot(y, probe), states

    got, expected = (
        jax.jit(jax.value_and_grad(function, has_aux=True))(params)
        for function in (stacked, by_hand)
    )
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_with_one_block_it_equals_a_stack(x, randomized):
    plain, module = Stack(GLOBAL, 3), AlternatingStack((GLOBAL,), 3)
    params = randomized(plain, x, MASK, train=False)
    boxed = [m.init(jax.random.key(0), x, MASK, train=False) for m in (plain, module)]
    shapes = [jax.tree.map(jnp.shape, nn.meta.unbox(tree)) for tree in boxed]
    assert shapes[0] == shapes[1]
    specs = [nn.get_partition_spec(tree) for tree in boxed]
    assert specs[0] == specs[1]
    got = module.apply(params, x, MASK, train=False)
    expected = plain.apply(params, x, MASK, train=False)
    assert got[1] is None
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-5)


class Filled(nn.Module):
    """A block whose initial kernel identifies it."""

    number: float

    @nn.compact
    def __call__(self, x, mask, *, train):
        def constant(_):
            return nn.initializers.constant(self.number)

        return Dense((D,), ("embed", None), initializer=constant)(x)


def test_every_layer_is_initialised_by_its_own_block(x):
    module = AlternatingStack((Filled(1.0), Filled(2.0), Filled(3.0)), 5)
    params = nn.meta.unbox(module.init(jax.random.key(0), x, MASK, train=False))
    kernel = params["params"]["block"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(kernel[:, 0, 0], [1, 2, 3, 1, 2])
    params = modernbert(5).init(jax.random.key(0), x, MASK, train=False)
    kernel = params["params"]["block"]["attention"]["query"]["kernel"].value
    assert len(np.unique(kernel)) > 0.99 * kernel.size


class Dropping(nn.Module):
    """A block that returns random numbers."""

    @nn.compact
    def __call__(self, x, mask, *, train):
        self.param("unused", nn.initializers.zeros, (1,))
        return jax.random.uniform(self.make_rng("dropout"), x.shape)


def test_dropout_differs_from_layer_to_layer(x):
    module = AlternatingStack((Dropping(), Dropping()), 5, keep_hidden_states=True)
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    (_, samples), _ = module.init_with_output(rngs, x, MASK, train=True)
    assert samples.shape == (5, B, L, D)
    assert len(np.unique(samples)) == samples.size


def test_incompatible_blocks_are_refused(x):
    with pytest.raises(ValueError, match="got parameters of different names or shapes"):
        AlternatingStack((GLOBAL, FeedForwardBlock(3)), 2).init(
            jax.random.key(0), x, MASK, train=False
        )
    with pytest.raises(UserError, match="no remat policy 'ful': did you mean 'full'"):
        modernbert(3, remat="ful").init(jax.random.key(0), x, MASK, train=False)


class FeedForwardBlock(nn.Module):
    """A block with other parameters."""

    width: int

    @nn.compact
    def __call__(self, x, mask, *, train):
        return FeedForward(self.width)(x)
