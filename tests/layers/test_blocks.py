"""Feed-forward networks, post-norm and pre-norm blocks, and their residuals for the gradient."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.blocks import FeedForward, PostNormBlock, PreNormBlock
from bertjax.layers.dense import PRECISIONS


def test_feed_forward(random, randomized, by_hand):
    module, x = FeedForward(11), random(2, 3, 7)
    boxed = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    assert boxed["intermediate"]["kernel"].names == ("embed", "mlp")
    assert boxed["output"]["kernel"].names == ("mlp", "embed")
    params = randomized(module, x)
    expected = by_hand.feed_forward(x, params["params"])
    np.testing.assert_allclose(module.apply(params, x), expected, rtol=1e-5, atol=1e-5)


def test_post_norm_block(random, randomized, by_hand):
    x, mask = random(2, 5, 6), masks.padding(jnp.arange(5) < jnp.array([[3], [5]]))
    block = PostNormBlock(SelfAttention(3), FeedForward(11), 0.1, 1e-3)
    params = randomized(block, x, mask, train=False)
    expected = by_hand.post_norm_block(x, mask, params["params"], 1e-3)
    got = block.apply(params, x, mask, train=False)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_dropout_applies_to_both_outputs_and_not_to_the_residual(random):
    """With a rate near 1, only the two residual connections remain."""
    x, mask = random(2, 5, 6), masks.padding(jnp.ones((2, 5), bool))
    block = PostNormBlock(SelfAttention(3, 0.0), FeedForward(11), 65535 / 65536)
    params = block.init(jax.random.key(0), x, mask, train=False)
    got = block.apply(params, x, mask, train=True, rngs={"dropout": jax.random.key(1)})
    once = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    np.testing.assert_allclose(got, once, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("precision", "kind"), [("float32", "f32"), ("bfloat16", "bf16")])
def test_residuals_have_one_array_of_each_large_shape(precision, kind, capsys):
    """The attention weights and the input of the activation; no arrays of zeros."""
    x, mask = (
        jnp.ones((2, 5, 6), PRECISIONS[precision].activations),
        masks.padding(jnp.ones((2, 5), bool)),
    )
    types = {"precision": PRECISIONS[precision]}
    block = PostNormBlock(SelfAttention(3, **types), FeedForward(11, **types))
    params = nn.meta.unbox(block.init(jax.random.key(0), x, mask, train=False))

    def loss(params):
        return block.apply(params, x, mask, train=True, rngs={"dropout": jax.random.key(1)}).sum()

    print_saved_residuals(loss, params)
    kept = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    large = {shape: kept.count(shape) for shape in kept if shape.endswith(("[2,3,5,5]", "11]"))}
    expected = {"bool[2,3,5,5]": 1, f"{kind}[2,3,5,5]": 1, f"{kind}[10,11]": 1}
    assert {shape: n for shape, n in large.items() if "[6,11]" not in shape} == expected


@pytest.mark.parametrize("act", ["gelu", "silu"])
def test_gated_feed_forward(act, random, randomized):
    module, x = FeedForward(11, act, use_bias=False, gated=True), random(2, 3, 7)
    boxed = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    assert boxed["gate"]["kernel"].names == ("embed", "mlp")
    params = randomized(module, x)
    own = params["params"]
    assert all(set(part) == {"kernel"} for part in own.values())
    kernels = [own[name]["kernel"] for name in ("intermediate", "gate", "output")]

    def by_formula(x, first, gate, last):
        activated = jax.nn.gelu(x @ first, approximate=False) if act == "gelu" else None
        if activated is None:
            activated = jax.nn.silu(x @ first)
        return (activated * (x @ gate)) @ last

    np.testing.assert_allclose(
        module.apply(params, x), by_formula(x, *kernels), rtol=1e-4, atol=1e-5
    )
    probe = random(2, 3, 7)
    got = jax.grad(lambda x: jnp.vdot(module.apply(params, x), probe))(x)
    expected = jax.grad(lambda x: jnp.vdot(by_formula(x, *kernels), probe))(x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_blocks_without_biases(random, randomized):
    """ModernBERT's blocks: pre-norm; the first one has no norm, since embeddings are normalised."""
    x, mask = random(2, 5, 6), masks.padding(jnp.arange(5) < jnp.array([[3], [5]]))
    attention = SelfAttention(3, use_bias=False)
    feed_forward = FeedForward(11, use_bias=False, gated=True)

    for kind in (PostNormBlock, PreNormBlock):
        block = kind(attention, feed_forward, norm_bias=False)
        params = randomized(block, x, mask, train=False)["params"]
        assert set(params["attention_norm"]) == set(params["feed_forward_norm"]) == {"scale"}
    first = PreNormBlock(attention, feed_forward, norm_bias=False, norm_attention=False)
    assert set(randomized(first, x, mask, train=False)["params"]) == set(params) - {
        "attention_norm"
    }
    got = first.apply({"params": params}, x, mask, train=False)
    middle = x + attention.apply({"params": params["attention"]}, x, mask, train=False)
    normal = middle - middle.mean(-1, keepdims=True)
    normal = normal / middle.std(-1, keepdims=True) * params["feed_forward_norm"]["scale"]
    expected = middle + feed_forward.apply({"params": params["feed_forward"]}, normal)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)
