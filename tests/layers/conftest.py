"""What tests of layers share: random arrays, and the arithmetic of the papers in numpy float64."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special


@pytest.fixture
def random():
    """Draws float32 arrays: `random(3, 5)`; the same ones in every run."""
    generator = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(generator.normal(size=shape), jnp.float32)


@pytest.fixture
def randomized():
    """Replaces every parameter by a draw, so that no zero bias or unit scale hides a mistake."""

    def draw(variables, scale=0.5):
        leaves, structure = jax.tree.flatten(variables)
        generator = np.random.default_rng(1)
        drawn = [jnp.asarray(generator.normal(0, scale, x.shape), jnp.float32) for x in leaves]
        return jax.tree.unflatten(structure, drawn)

    return draw


def layer_norm(x, parameters, epsilon):
    x = np.asarray(x, np.float64)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return normal * parameters["scale"] + parameters["bias"]


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
    visible = np.broadcast_to(mask, (batch, 1, length, length))
    for b, h, query in np.ndindex(batch, heads, length):
        seen = visible[b, 0, query]
        scores = projected["key"][b, seen, h] @ projected["query"][b, query, h] / np.sqrt(width)
        weights = np.exp(scores - scores.max())
        context[b, query, h] = weights @ projected["value"][b, seen, h] / weights.sum()
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
    """The layers in numpy, written from the papers' formulas."""
    return types.SimpleNamespace(
        layer_norm=layer_norm,
        gelu=gelu,
        attention=attention,
        feed_forward=feed_forward,
        post_norm_block=post_norm_block,
    )
