"""The causal language model: loss by hand, with any chunk size, without [B L V] (invariant 6)."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.errors import UserError
from bertjax.layers.losses import cross_entropy
from bertjax.models import bert
from bertjax.models.gpt2 import Model
from bertjax.objectives import generator, mlm, sentence_pair
from bertjax.objectives.causal_lm import Objective, next_token_targets
from bertjax.pretrainer import Pretrainer

B, L, V, D = 3, 11, 61, 6


def pretrainer(**fields):
    return Pretrainer(Model(V, D, 1, 2, 5), {"causal_lm": lambda: Objective(**fields)})


@pytest.fixture(scope="module")
def batch():
    ids = np.random.default_rng(0).integers(0, V, (B, L))
    return {
        "input_ids": jnp.asarray(ids),
        "attention_mask": jnp.asarray(np.arange(L) < np.array([[L], [4], [7]])),
        "example_weight": jnp.asarray([1.0, 1.0, 0.0]),
    }


@pytest.fixture(scope="module")
def variables(random_variables, batch):
    return random_variables(pretrainer(), batch, train=False)


@pytest.mark.parametrize("size", [0, 4])
def test_the_loss_by_hand_with_any_chunk_size(size, variables, batch):
    module = pretrainer(positions_at_once=size)
    sequence = module.apply(
        variables, batch, method=lambda m, b: m.encoder(b, train=False).sequence
    )
    table = np.asarray(variables["params"]["encoder"]["word_embeddings"]["embedding"], np.float64)
    logits = np.asarray(sequence, np.float64) @ table.T
    log_probs = logits - scipy.special.logsumexp(logits, axis=-1, keepdims=True)
    ids = np.asarray(batch["input_ids"])
    expected, hits = 0.0, 0
    for row, length in ((0, L), (1, 4)):
        for place in range(length - 1):
            expected -= log_probs[row, place, ids[row, place + 1]]
            hits += log_probs[row, place].argmax() == ids[row, place + 1]
    losses, metrics = module.apply(variables, batch, train=False)
    assert float(losses["causal_lm"][0]) == pytest.approx(expected, rel=1e-5)
    assert losses["causal_lm"][1] == (L - 1) + 3
    assert metrics["causal_lm/accuracy"][0] == hits


def test_label_smoothing_and_z_loss_are_those_of_all_logits(variables, batch):
    """Loss and gradient, in chunks; evaluation has neither."""
    options = {"label_smoothing": 0.2, "z_loss": 0.01}
    module = pretrainer(**options)

    def chunked_loss(params, train=True):
        def loss(module, batch):
            encoded = module.encoder(batch, train=False)
            return module.causal_lm.loss(module.encoder, encoded, batch, train=train)[0]

        return module.apply({"params": params}, batch, method=loss)

    def full_loss(params):
        def logits(module, batch):
            return module.encoder.attend(module.encoder(batch, train=False).sequence)

        scores = module.apply({"params": params}, batch, method=logits)
        return cross_entropy(scores, *next_token_targets(batch), **options)

    got, expected = (
        jax.jit(jax.value_and_grad(f))(variables["params"]) for f in (chunked_loss, full_loss)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, expected)
    plain = pretrainer().apply(variables, batch, train=False)[0]["causal_lm"][0]
    assert chunked_loss(variables["params"], train=False) == plain


def test_logits_of_all_positions_are_not_materialised(variables, batch):
    def loss(params):
        return pretrainer().apply({"params": params}, batch, train=False)[0]["causal_lm"][0]

    program = str(jax.make_jaxpr(jax.grad(loss))(variables["params"]))
    shapes = {tuple(map(int, s.split(","))) for s in re.findall(r"f32\[([\d,]+)\]", program)}
    scores = {shape for shape in shapes if shape[-1] == V}
    assert (B, 2, V) in scores
    assert max(int(np.prod(shape[:-1])) for shape in scores) == B * 2


def test_models_of_other_objectives_are_refused(batch):
    def initialise(encoder, **objectives):
        module = Pretrainer(encoder, objectives)
        keys = jax.random.split(jax.random.key(0), B)
        rows = {**batch, "segment_ids": jnp.zeros((B, L), jnp.int32), "example_key": keys}
        jax.eval_shape(lambda: module.init(jax.random.key(0), rows, train=False))

    with pytest.raises(UserError, match=r"causal_lm: got a model whose tokens see the next .*bert"):
        initialise(bert.Model(V, D, 1, 2, 5), causal_lm=Objective)
    masked = functools.partial(mlm.Objective, 1, (1,), V)
    with pytest.raises(UserError, match=r"objective mlm: got a causal model \(gpt2\)"):
        initialise(Model(V, D, 1, 2, 5), mlm=masked)
    with pytest.raises(UserError, match=r"sentence_pair: got a model without a pooler \(gpt2\)"):
        initialise(Model(V, D, 1, 2, 5), sentence_pair=sentence_pair.Objective)
    replacing = functools.partial(generator.Objective, 1, (1,), V)
    with pytest.raises(UserError, match=r"generator: got a model that shares no embed.* \(gpt2\)"):
        initialise(Model(V, D, 1, 2, 5), generator=replacing)
