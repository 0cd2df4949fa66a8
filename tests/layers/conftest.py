"""Fixtures of layer tests: random arrays, and the papers' formulas in numpy float64."""

import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

KEY = jax.random.key(0)


@pytest.fixture
def random():
    """Random float32 arrays: `random(3, 5)`; the same in every run."""
    generator = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(generator.normal(size=shape), jnp.float32)


@pytest.fixture
def randomized():
    """Random variables of a module: no zero bias or unit scale hides an error.

    `randomized(module, x, mask, train=False)`: the arguments of `module.init` after the key.
    """

    def draw(module, *arguments, scale=0.5, **options):
        generator = np.random.default_rng(1)
        boxed = jax.eval_shape(lambda key: module.init(key, *arguments, **options), KEY)
        return jax.tree.map(
            lambda leaf: jnp.asarray(generator.normal(0, scale, leaf.shape), jnp.float32),
            nn.meta.unbox(boxed),
        )

    return draw


def layer_norm(x, parameters, epsilon):
    x = np.asarray(x, np.float64)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return normal * np.asarray(parameters["scale"]) + np.asarray(parameters["bias"])


def gelu(x):
    return x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))


def attention(x, mask, parameters):
    """Multi-head self-attention, one head and one query at a time."""
    x = np.asarray(x, np.float64)
    projected = {
        name: np.einsum("bld,dhk->blhk", x, parameters[name]["kernel"]) + parameters[name]["bias"]
        for name in ("query", "key", "value")
    }
    context = np.zeros_like(projected["query"])
    batch, length, heads, width = context.shape
    visible = np.broadcast_to(mask.array(), (batch, 1, length, length))
    for b, h, query in np.ndindex(batch, heads, length):
        keys = visible[b, 0, query]
        scores = projected["key"][b, keys, h] @ projected["query"][b, query, h] / np.sqrt(width)
        weights = np.exp(scores - scores.max())
        context[b, query, h] = weights @ projected["value"][b, keys, h] / weights.sum()
    output = parameters["output"]
    return np.einsum("blhk,hkd->bld", context, output["kernel"]) + output["bias"]


def feed_forward(x, parameters):
    inner, outer = parameters["intermediate"], parameters["output"]
    return gelu(x @ inner["kernel"] + inner["bias"]) @ outer["kernel"] + outer["bias"]


def post_norm_block(x, mask, parameters, epsilon):
    attended = x + attention(x, mask, parameters["attention"])
    x = layer_norm(attended, parameters["attention_norm"], epsilon)
    changed = x + feed_forward(x, parameters["feed_forward"])
    return layer_norm(changed, parameters["feed_forward_norm"], epsilon)


@pytest.fixture(scope="session")
def by_hand():
    """The layers in numpy, from the papers' formulas."""
    return types.SimpleNamespace(
        layer_norm=layer_norm,
        gelu=gelu,
        attention=attention,
        feed_forward=feed_forward,
        post_norm_block=post_norm_block,
    )
