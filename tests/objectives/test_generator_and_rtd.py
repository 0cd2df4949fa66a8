"""ELECTRA's objectives: replacements, gradients and losses of generator and discriminator."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

from bertjax.errors import UserError
from bertjax.layers import masking
from bertjax.models.bert import Model
from bertjax.objectives import generator, rtd
from bertjax.pretrainer import Encoded, Pretrainer
from bertjax.train.state import create, unbox
from bertjax.train.step import example_keys, make_train_step

PAD, CLS, SEP, MASK = 0, 2, 3, 4
V, D, E, N, H, F = 61, 24, 10, 2, 4, 20
FIELDS = {"mask_id": MASK, "special_ids": (PAD, 1, CLS, SEP), "vocab_size": V}


def pretrainer(dropout=0.0, vocab_size=V, **fields):
    model = Model(
        vocab_size=vocab_size,
        hidden_size=D,
        embedding_size=E,
        num_hidden_layers=N,
        num_attention_heads=H,
        intermediate_size=F,
        max_position_embeddings=64,
        num_pooler_layers=0,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.3,
    )
    fields = FIELDS | {"vocab_size": vocab_size} | fields
    objectives = {
        "generator": functools.partial(generator.Objective, **fields),
        "rtd": rtd.Objective,
    }
    return Pretrainer(model, objectives)


@pytest.fixture(scope="module")
def params(make_batch):
    batch = make_batch()
    return jax.jit(
        lambda: nn.meta.unbox(pretrainer().init(jax.random.key(0), batch, train=False))
    )()["params"]


@jax.jit
def prepared(params, batch):
    return pretrainer().apply({"params": params}, batch, train=False, method="prepare")


def test_replacements_are_at_the_selected_positions(params, make_batch):
    batch = make_batch()
    found = prepared(params, batch)
    np.testing.assert_array_equal(found["original_ids"], batch["input_ids"])
    chosen = np.zeros(batch["input_ids"].shape, bool)
    for row, (positions, weights) in enumerate(
        zip(found["mlm_positions"], found["mlm_weights"], strict=True)
    ):
        chosen[row, np.asarray(positions)[np.asarray(weights) > 0]] = True
    changed = np.asarray(found["input_ids"] != batch["input_ids"])
    assert changed.sum() > 20
    assert not np.any(changed & ~chosen)
    # The [MASK] of the generator's input is replaced, except where it was sampled.
    assert np.mean(np.asarray(found["input_ids"])[chosen] == MASK) < 0.2


def test_the_generator_does_not_depend_on_predicted_tokens(params, make_batch):
    def logits(batch):
        module = pretrainer(mask_share=1.0)
        found = module.apply({"params": params}, batch, train=False, method="prepare")
        return found["generator_logits"], found["mlm_positions"], found["mlm_weights"]

    batch = make_batch(2, 12)
    expected, positions, weights = logits(batch)
    rows = np.arange(2)[:, None]
    own = batch["input_ids"][rows, positions]
    others = jnp.where(weights > 0, 5 + (own - 4) % (V - 5), own)
    changed = batch | {"input_ids": batch["input_ids"].at[rows, positions].set(others)}
    assert np.any(changed["input_ids"] != batch["input_ids"])
    np.testing.assert_array_equal(logits(changed)[0], expected)


def test_replacements_are_samples_of_the_generator():
    logits = jnp.log(jnp.array([[[0.5, 0.3, 0.2]], [[0.1, 0.1, 0.8]]]))
    keys = jax.vmap(lambda i: jax.random.split(jax.random.key(i), 2))(jnp.arange(4000))
    samples = jax.jit(jax.vmap(lambda pair: masking.sample(pair, logits)))(keys)
    shares = [np.bincount(np.asarray(samples)[:, row, 0], minlength=3) / 4000 for row in range(2)]
    # Five standard deviations of a share of 4,000 samples.
    np.testing.assert_allclose(shares, [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], atol=0.04)


def test_replacements_depend_on_step_and_example(params, make_batch):
    """Invariant 1: equal in the same step, in any row of the batch."""
    first = prepared(params, make_batch())["input_ids"]
    again = prepared(params, make_batch())["input_ids"]
    np.testing.assert_array_equal(first, again)
    assert np.any(prepared(params, make_batch(step=1))["input_ids"] != first)
    turned = jax.tree.map(lambda rows: rows[::-1], make_batch())
    turned = prepared(params, turned)["input_ids"]
    np.testing.assert_array_equal(turned[::-1], first)


def test_masks_and_samples_have_different_keys(params, make_batch, monkeypatch):
    used, sample = [], masking.sample
    monkeypatch.setattr(masking, "sample", lambda keys, x: used.append(keys) or sample(keys, x))
    batch = make_batch(2, 8)
    pretrainer().apply({"params": params}, batch, train=False, method="prepare")
    (sampling,) = map(jax.random.key_data, used)
    for key, own in zip(batch["example_key"], sampling, strict=True):
        for others in (key[None], *(jax.random.split(key, count) for count in (2, 3, 5))):
            assert not np.any(np.all(jax.random.key_data(others) == own, axis=-1))


class Loss(nn.Module):
    """The objective with an encoder of given outputs."""

    encoder: nn.Module
    objective: nn.Module

    def __call__(self, sequence, batch):
        return self.objective.loss(self.encoder, Encoded(sequence), batch, train=False)


def test_the_loss_of_rtd_by_hand(encoder, random_variables):
    sequence = jnp.asarray(np.random.default_rng(3).normal(size=(2, 4, 6)), jnp.float32)
    batch = {
        "original_ids": jnp.array([[2, 7, 8, 9], [2, 5, 0, 0]]),
        # A replacement equal to the original counts as original; padding counts nothing.
        "input_ids": jnp.array([[2, 7, 60, 11], [2, 5, 33, 0]]),
        "attention_mask": jnp.array([[True] * 4, [True, True, False, False]]),
    }
    module = Loss(encoder, rtd.Objective())
    variables = random_variables(module, sequence, batch)
    parameters = jax.tree.map(np.asarray, variables["params"]["objective"])
    hidden = sequence @ parameters["dense"]["kernel"] + parameters["dense"]["bias"]
    hidden = hidden * scipy.special.ndtr(hidden)
    last = parameters["classifier"]["dense"]
    logits = (hidden @ last["kernel"] + last["bias"])[..., 0]
    places = [(0, 0, 0), (0, 1, 0), (0, 2, 1), (0, 3, 1), (1, 0, 0), (1, 1, 0)]
    probs = [(scipy.special.expit(logits[row, at]), fake) for row, at, fake in places]
    expected = -sum(np.log(prob if fake else 1 - prob) for prob, fake in probs)
    loss, weight, metrics = module.apply(variables, sequence, batch)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert weight == 6
    right = sum((prob > 0.5) == fake for prob, fake in probs)
    found = sum(prob > 0.5 for prob, fake in probs if fake)
    assert metrics == {"accuracy": (right, 6), "replaced": (2, 6), "found": (found, 2)}
    half = batch | {"example_weight": jnp.array([1.0, 0.0])}
    assert module.apply(variables, sequence, half)[1] == 4


@pytest.mark.parametrize("name", [pytest.param("generator", marks=pytest.mark.slow), "rtd"])
def test_no_gradient_flows_through_the_sampling(name, params, make_batch):
    """rtd has gradients for encoder and shared embeddings, not for the generator's layers."""

    def loss(params):
        losses, _ = pretrainer().apply({"params": params}, make_batch(), train=False)
        return losses[name][0]

    gradient = jax.jit(jax.grad(loss))(params)
    size = {
        "layers": optax.tree.norm(gradient["encoder"]["layers"]),
        "words": optax.tree.norm(gradient["encoder"]["word_embeddings"]),
        "positions": optax.tree.norm(gradient["encoder"]["position_embeddings"]),
        "generator": optax.tree.norm(gradient["generator"]),
        "rtd": optax.tree.norm(gradient["rtd"]),
    }
    frozen_parts = {"generator": {"layers", "rtd"}, "rtd": {"generator"}}[name]
    assert {part for part, norm in size.items() if norm == 0} == frozen_parts


def test_the_generator_shares_embeddings_and_has_a_share_of_the_width(params):
    assert set(params["generator"]["encoder"]) == {"embeddings_project", "layers"}
    block = params["generator"]["encoder"]["layers"]["block"]
    assert block["attention"]["query"]["kernel"].shape == (N, D // 4, 1, D // 4)
    assert block["feed_forward"]["intermediate"]["kernel"].shape == (N, D // 4, F // 4)
    assert params["generator"]["mlm"]["transform"]["dense"]["kernel"].shape == (D // 4, E)


@pytest.mark.slow
def test_accumulation_is_exact(make_batch):
    """Two losses, each over its own number of tokens, with unequal shares per microbatch."""
    batch = {name: rows for name, rows in make_batch().items() if name != "example_key"}
    batch["example_weight"] = jnp.array([1.0, 1, 0, 1, 0, 0, 1, 1])
    none, rate = optax.identity(), lambda step: jnp.asarray(1.0)
    keyed = batch | {"example_key": example_keys(0, jnp.asarray(0), 8)}
    start = jax.jit(lambda: unbox(create(pretrainer(), none, keyed, 0)))()

    def gradient(microbatches):
        step = make_train_step(pretrainer(), none, rate, seed=0, microbatches=microbatches)
        state, metrics = jax.jit(step)(start, batch)
        return jax.tree.map(jnp.subtract, start.params, state.params), metrics

    (whole, metrics), (parts, metrics_of_parts) = gradient(1), gradient(4)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole))
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6 * largest)
    for name, value in metrics.items():
        assert metrics_of_parts[name] == pytest.approx(float(value), rel=1e-5), name
    assert metrics["loss"] == pytest.approx(
        float(metrics["generator/loss"] + 50 * metrics["rtd/loss"]), rel=1e-5
    )


def test_a_share_of_the_width_that_does_not_divide(make_batch):
    with pytest.raises(UserError, match="gives a width of 19 for 3 heads: choose a size"):
        jax.eval_shape(
            lambda: pretrainer(size=0.8).init(jax.random.key(0), make_batch(), train=False)
        )


def test_rtd_requires_a_preceding_generator(encoder, make_batch):
    with pytest.raises(UserError, match=r"put generator before it in config\.objectives"):
        rtd.Objective().prepare(encoder, make_batch(), train=True)
