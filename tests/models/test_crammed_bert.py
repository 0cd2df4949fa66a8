"""CrammedBERT against the formulas of the released code; published number of parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from bertjax import build
from bertjax.config import load_config
from bertjax.models.crammed_bert import Model
from bertjax.objectives import mlm
from bertjax.pretrainer import Pretrainer
from bertjax.train.checkpoint import trees

L, V, D, H, N = 7, 31, 12, 3, 2
EPSILON = 0.01
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": 20,
    "max_position_embeddings": 9,
    "layer_norm_eps": EPSILON,
}
MLM = functools.partial(mlm.Objective, mask_id=4, special_ids=(0, 1, 2, 3, 4), vocab_size=V)


def test_the_published_number_of_parameters():
    """About 120 million, of which none belong to a head."""
    encoder = build.encoder(load_config("crammed_bert").model)
    batch = {"input_ids": jnp.zeros((1, 8), int), "attention_mask": jnp.ones((1, 8), bool)}
    init = functools.partial(encoder.init, train=False)
    count = trees.num_parameters(jax.eval_shape(init, jax.random.key(0), batch))
    layer = 4 * 768**2 + 768 * 3072 + 1536 * 768 + 4 * 768
    assert count == 32_768 * 768 + 1 + 2 * 768 + 16 * layer + 2 * 768


def layer_norm(x, p):
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
    return normal * p["scale"] + p["bias"]


def gelu(x):
    return x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))


def attention(x, p):
    query, key, value = (
        np.einsum("ld,dhk->hlk", x, p[name]["kernel"]) for name in ("query", "key", "value")
    )
    scores = query @ key.swapaxes(1, 2) / np.sqrt(D / H)
    context = scipy.special.softmax(scores, axis=-1) @ value
    return np.einsum("hlk,hkd->ld", context, p["output"]["kernel"])


def geglu(x, p):
    product = gelu(x @ p["intermediate"]["kernel"]) * (x @ p["gate"]["kernel"])
    return product @ p["output"]["kernel"]


def by_hand(params, ids):
    """Outputs of all layers for one row, the last one normalised too."""
    words = params["word_embeddings"]["embedding"][ids]
    angles = np.arange(len(ids))[:, None] * 10_000 ** (-np.arange(0, D, 2) / D)
    sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    x = words + params["position_embeddings"]["scale"] * sinusoids
    x = layer_norm(x, params["embeddings"]["norm"])
    states = [x]
    for layer in range(N):
        p = jax.tree.map(lambda leaf, at=layer: leaf[at], params["layers"]["block"])
        x = x + attention(layer_norm(x, p["attention_norm"]), p["attention"])
        x = x + geglu(layer_norm(x, p["feed_forward_norm"]), p["feed_forward"])
        states.append(x)
    return states, layer_norm(x, params["norm"])


def test_encoder_and_head_by_hand(random_variables):
    """A padded row equals the formula for it without padding (invariant 7)."""
    pretrainer = Pretrainer(Model(**SIZES, output_hidden_states=True), {"mlm": MLM})
    ids = jnp.asarray(np.random.default_rng(0).integers(5, V, (2, L)))
    batch = {
        "input_ids": ids,
        "attention_mask": jnp.arange(L) < jnp.array([[L], [5]]),
        "mlm_positions": jnp.array([[1, 6], [4, 0]]),
        "mlm_labels": jnp.zeros((2, 2), int),
        "mlm_weights": jnp.ones((2, 2)),
    }
    variables = random_variables(pretrainer, batch)
    assert set(variables["params"]) == {"encoder"}

    def outputs(module, batch):
        encoded = module.encoder(batch, train=False)
        return encoded, module.mlm.scores(module.encoder, encoded, batch, train=False)[0]

    encoded, logits = jax.jit(lambda v, b: pretrainer.apply(v, b, method=outputs))(variables, batch)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"]["encoder"])
    for row, length in enumerate((L, 5)):
        states, last = by_hand(params, ids[row, :length])
        np.testing.assert_allclose(encoded.sequence[row, :length], last, atol=2e-4)
        for found, state in zip(encoded.hidden_states, states, strict=True):
            np.testing.assert_allclose(found[row, :length], state, rtol=1e-3, atol=2e-4)
        expected = last[batch["mlm_positions"][row]] @ params["word_embeddings"]["embedding"].T
        np.testing.assert_allclose(logits[row], expected, rtol=1e-3, atol=1e-3)
