"""Activations, the feed-forward net and the post-norm block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers.attention import SelfAttention
from bertjax.layers.blocks import FeedForward, PostNormBlock, activation


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


def test_feed_forward(random, randomized, by_hand):
    module, x = FeedForward(11), random(2, 3, 7)
    boxed = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    assert boxed["intermediate"]["kernel"].names == ("embed", "mlp")
    assert boxed["output"]["kernel"].names == ("mlp", "embed")
    params = randomized(module, x)
    wanted = by_hand.feed_forward(x, params["params"])
    np.testing.assert_allclose(module.apply(params, x), wanted, rtol=1e-5, atol=1e-5)


def test_post_norm_block(random, randomized, by_hand):
    x, mask = (
        random(2, 5, 6),
        jnp.arange(5)[None, None, None] < jnp.array([3, 5])[:, None, None, None],
    )
    block = PostNormBlock(SelfAttention(3), FeedForward(11), 0.1, 1e-3)
    params = randomized(block, x, mask, train=False)
    wanted = by_hand.post_norm_block(x, mask, params["params"], 1e-3)
    got = block.apply(params, x, mask, train=False)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_dropout_of_a_block_acts_on_both_outputs_and_not_on_the_residual(random):
    """With all but nothing kept, the two residual paths alone come through."""
    x, mask = random(2, 5, 6), jnp.ones((2, 1, 1, 5), bool)
    block = PostNormBlock(SelfAttention(3, 0.0), FeedForward(11), 65535 / 65536)
    params = block.init(jax.random.key(0), x, mask, train=False)
    got = block.apply(params, x, mask, train=True, rngs={"dropout": jax.random.key(1)})
    once = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    np.testing.assert_allclose(got, once, rtol=1e-4, atol=1e-4)
