"""MosaicBERT against the formulas of the released code; dropout; published number of parameters."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from bertjax import build
from bertjax.config import load_config
from bertjax.models.mosaicbert import GatedFeedForward, Model
from bertjax.train.checkpoint import trees

L, V, D, H, N = 7, 31, 12, 3, 2
EPSILON = 0.01
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": 20,
    "layer_norm_eps": EPSILON,
}
SLOPES = np.array([1 / 16, 1 / 256, 1 / 4])


def test_the_published_number_of_parameters():
    """Of the released module, without the head: 137 million."""
    encoder = build.encoder(load_config("mosaicbert").model)
    batch = {"input_ids": jnp.zeros((1, 8), int), "attention_mask": jnp.ones((1, 8), bool)}
    init = functools.partial(encoder.init, train=False)
    count = trees.num_parameters(jax.eval_shape(init, jax.random.key(0), batch))
    attention = 4 * (768 * 768 + 768)
    feed_forward = 768 * 6144 + 3072 * 768 + 768
    assert count == (30528 + 2 + 2) * 768 + 12 * (attention + feed_forward + 4 * 768)


def layer_norm(x, p):
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
    return normal * p["scale"] + p["bias"]


def gelu(x):
    return x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))


def attention(x, p):
    query, key, value = (
        np.einsum("ld,dhk->hlk", x, p[name]["kernel"]) + p[name]["bias"][:, None]
        for name in ("query", "key", "value")
    )
    distances = np.abs(np.arange(len(x))[:, None] - np.arange(len(x)))
    scores = query @ key.swapaxes(1, 2) / np.sqrt(D / H) - SLOPES[:, None, None] * distances
    context = scipy.special.softmax(scores, axis=-1) @ value
    return np.einsum("hlk,hkd->ld", context, p["output"]["kernel"]) + p["output"]["bias"]


def geglu(x, p):
    product = gelu(x @ p["intermediate"]["kernel"]) * (x @ p["gate"]["kernel"])
    return product @ p["output"]["kernel"] + p["output"]["bias"]


def by_hand(params, ids, segments):
    """Outputs of all layers for one row."""
    x = params["word_embeddings"]["embedding"][ids]
    x = layer_norm(
        x + params["segment_embeddings"]["embedding"][segments], params["embeddings"]["norm"]
    )
    states = [x]
    for layer in range(N):
        p = jax.tree.map(lambda leaf, at=layer: leaf[at], params["layers"]["block"])
        x = layer_norm(x + attention(x, p["attention"]), p["attention_norm"])
        x = layer_norm(x + geglu(x, p["feed_forward"]), p["feed_forward_norm"])
        states.append(x)
    return states


def test_the_encoder_by_hand(random_variables):
    """A padded row equals the formula for it without padding (invariant 7)."""
    model = Model(**SIZES, output_hidden_states=True)
    random = np.random.default_rng(0)
    batch = {
        "input_ids": jnp.asarray(random.integers(0, V, (2, L))),
        "segment_ids": jnp.asarray(random.integers(0, 2, (2, L))),
        "attention_mask": jnp.arange(L) < jnp.array([[L], [5]]),
    }
    variables = random_variables(model, batch)
    encoded = jax.jit(lambda v, b: model.apply(v, b, train=False))(variables, batch)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    for row, length in enumerate((L, 5)):
        inputs = (batch[name][row, :length] for name in ("input_ids", "segment_ids"))
        states = by_hand(params, *inputs)
        for found, state in zip(encoded.hidden_states, states, strict=True):
            np.testing.assert_allclose(found[row, :length], state, rtol=1e-3, atol=2e-4)
        np.testing.assert_array_equal(encoded.sequence[row], encoded.hidden_states[-1][row])


def test_dropout_acts_between_the_maps_of_a_feed_forward_net():
    """With a rate near 1 only the bias of the output is left."""
    x, module = jnp.ones((2, 5, 6)), GatedFeedForward(11, dropout_rate=65535 / 65536)
    params = nn.meta.unbox(module.init(jax.random.key(0), x, train=False))["params"]
    assert {name: set(part) for name, part in params.items()} == {
        "intermediate": {"kernel"},
        "gate": {"kernel"},
        "output": {"kernel", "bias"},
    }
    params["output"]["bias"] = jnp.arange(6.0)
    rngs = {"dropout": jax.random.key(1)}
    got = module.apply({"params": params}, x, train=True, rngs=rngs)
    np.testing.assert_allclose(got, np.broadcast_to(np.arange(6.0), (2, 5, 6)), atol=1e-6)
