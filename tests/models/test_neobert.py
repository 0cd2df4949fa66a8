"""NeoBERT against the formulas of the released code; published numbers of parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax import build
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.models.neobert import Model
from bertjax.objectives import mlm, mntp
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
    "max_position_embeddings": L,
    "rope_theta": 50.0,
    "layer_norm_eps": EPSILON,
}
MLM = functools.partial(mlm.Objective, mask_id=4, special_ids=(0, 1, 2, 3, 4))


def test_published_numbers_of_parameters():
    """The released code has 250 million, which it rounds, with the untied output layer."""
    encoder = build.encoder(load_config("neobert").model)
    pretrainer = Pretrainer(encoder, {"mlm": functools.partial(MLM, vocab_size=30522)})
    batch = {"input_ids": jnp.zeros((1, 8), int), "attention_mask": jnp.ones((1, 8), bool)}
    batch |= {"example_key": jax.random.split(jax.random.key(0), 1)}
    init = functools.partial(pretrainer.init, train=False)
    params = jax.eval_shape(init, jax.random.key(0), batch)["params"]
    layer = 4 * 768**2 + 3 * 768 * 2048 + 2 * 768
    assert trees.num_parameters(params["encoder"]) == 30522 * 768 + 28 * layer + 768
    assert trees.num_parameters(params["mlm"]) == 30522 * 768 + 30522


def rms_norm(x, parameters):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * parameters["scale"]


def rotated(x):
    """Pairs of neighbouring features as complex numbers, turned by their angles [L, H, K / 2]."""
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    width = x.shape[-1]
    frequencies = 50.0 ** (-np.arange(0, width, 2) / width)
    turned = pairs * np.exp(1j * np.arange(len(x))[:, None, None] * frequencies)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def attention(x, p):
    query, key, value = (
        np.einsum("ld,dhk->lhk", x, p[name]["kernel"]) for name in ("query", "key", "value")
    )
    scores = np.einsum("lhk,mhk->hlm", rotated(query), rotated(key)) / np.sqrt(D / H)
    context = np.einsum("hlm,mhk->lhk", scipy.special.softmax(scores, axis=-1), value)
    return np.einsum("lhk,hkd->ld", context, p["output"]["kernel"])


def swiglu(x, p):
    first = x @ p["intermediate"]["kernel"]
    return (first * scipy.special.expit(first) * (x @ p["gate"]["kernel"])) @ p["output"]["kernel"]


def by_hand(params, ids):
    """Outputs of all layers for one row, the last one normalised too."""
    x = params["word_embeddings"]["embedding"][ids]
    states = [x]
    for layer in range(N):
        p = jax.tree.map(lambda leaf, at=layer: leaf[at], params["layers"]["block"])
        x = x + attention(rms_norm(x, p["attention_norm"]), p["attention"])
        x = x + swiglu(rms_norm(x, p["feed_forward_norm"]), p["feed_forward"])
        states.append(x)
    return states, rms_norm(x, params["norm"])


@pytest.fixture(scope="module")
def pretrainer():
    model = Model(**SIZES, output_hidden_states=True)
    return Pretrainer(model, {"mlm": functools.partial(MLM, vocab_size=V)})


def test_encoder_and_head_by_hand(pretrainer, random_variables):
    """A padded row equals the formula for it without padding (invariant 7)."""
    ids = jnp.asarray(np.random.default_rng(0).integers(5, V, (2, L)))
    batch = {
        "input_ids": ids,
        "attention_mask": jnp.arange(L) < jnp.array([[L], [5]]),
        "mlm_positions": jnp.array([[1, 6], [4, 0]]),
        "mlm_labels": jnp.zeros((2, 2), int),
        "mlm_weights": jnp.ones((2, 2)),
    }
    variables = random_variables(pretrainer, batch)

    def outputs(module, batch):
        encoded = module.encoder(batch, train=False)
        return encoded, module.mlm.scores(module.encoder, encoded, batch, train=False)[0]

    encoded, logits = jax.jit(lambda v, b: pretrainer.apply(v, b, method=outputs))(variables, batch)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    for row, length in enumerate((L, 5)):
        states, last = by_hand(params["encoder"], ids[row, :length])
        np.testing.assert_allclose(encoded.sequence[row, :length], last, atol=2e-4)
        for found, state in zip(encoded.hidden_states, states, strict=True):
            np.testing.assert_allclose(found[row, :length], state, rtol=1e-3, atol=2e-4)
        head = params["mlm"]
        expected = last[batch["mlm_positions"][row]] @ head["decoder"]["embedding"].T + head["bias"]
        np.testing.assert_allclose(logits[row], expected, rtol=1e-3, atol=1e-3)


def test_logits_in_chunks_have_the_output_layer_too(random_variables):
    """Masked next token prediction; only tokens of the input train the word embeddings."""
    objective = mntp.Objective(4, (0, 1, 2, 3, 4), V, masked_lm_prob=0.5, random_share=0.0)
    pretrainer = Pretrainer(Model(**SIZES), {"mntp": lambda: objective})
    batch = {
        "input_ids": jnp.asarray(np.random.default_rng(0).integers(5, 20, (2, L))),
        "attention_mask": jnp.ones((2, L), bool),
        "example_key": jax.random.split(jax.random.key(0), 2),
    }
    variables = random_variables(pretrainer, batch)

    def loss(variables):
        return pretrainer.apply(variables, batch, train=False)[0]["mntp"][0]

    gradient = jax.jit(jax.grad(loss))(variables)["params"]
    assert np.all(np.abs(gradient["mntp"]["decoder"]["embedding"]).max(axis=1) > 0)
    assert np.all(gradient["encoder"]["word_embeddings"]["embedding"][20:] == 0)


def test_a_sequence_that_is_too_long():
    batch = {"input_ids": jnp.zeros((1, 8), int), "attention_mask": jnp.ones((1, 8), bool)}
    with pytest.raises(UserError, match="8 tokens exceeds max_position_embeddings=7"):
        jax.eval_shape(lambda: Model(**SIZES).init(jax.random.key(0), batch, train=False))
