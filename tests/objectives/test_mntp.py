"""Masked next-token prediction: kinds, masks, weights and loss by hand."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

from bertjax.objectives import mlm
from bertjax.objectives.mntp import Objective
from bertjax.pretrainer import Pretrainer
from bertjax.train.step import make_train_step

MASK, SPECIAL, VOCABULARY = 4, (0, 1, 2, 3, 4), 61
make = functools.partial(Objective, MASK, SPECIAL, VOCABULARY)


def prepare(objective, encoder, batch):
    call = functools.partial(objective.apply, {}, encoder, train=True, method="prepare")
    return jax.device_get(jax.jit(call)(batch))


def test_kinds_have_their_shares_and_change_with_the_step(encoder, make_batch):
    objective = make(causal_share=0.25, masked_lm_prob=0.3)
    batch = make_batch(1200, 24)
    first = prepare(objective, encoder, batch)
    kinds = first["lm_kind"]
    assert abs(kinds.mean() - 0.25) < 0.05
    later = prepare(objective, encoder, make_batch(1200, 24, step=1))["lm_kind"]
    assert abs((later != kinds).mean() - 2 * 0.25 * 0.75) < 0.05


def test_rows_of_both_kinds_by_hand(encoder, make_batch):
    """Masked rows are those of the MLM with the same keys; causal ones predict all of the text."""
    batch = make_batch(16, 24) | {"example_weight": jnp.ones(16).at[1].set(0.0)}
    found = prepare(make(causal_share=0.5, masked_lm_prob=0.3), encoder, batch)
    masked = prepare(mlm.Objective(MASK, SPECIAL, VOCABULARY, masked_lm_prob=0.3), encoder, batch)
    ids, attention_mask = np.asarray(batch["input_ids"]), np.asarray(batch["attention_mask"])
    assert 4 < found["lm_kind"].sum() < 12
    for row, is_causal in enumerate(found["lm_kind"]):
        weights, visible = found["mlm_weights"][row], np.broadcast_to(attention_mask[row], (24, 24))
        text = attention_mask[row] & ~np.isin(ids[row], SPECIAL)
        budget = masked["mlm_weights"][row].sum()
        assert budget == (0 if row == 1 else np.round(0.3 * text.sum()))
        if is_causal:
            np.testing.assert_array_equal(found["input_ids"][row], ids[row])
            np.testing.assert_array_equal(found["mlm_labels"][row], ids[row])
            np.testing.assert_array_equal(found["mlm_positions"][row], np.arange(24))
            np.testing.assert_allclose(weights, text * budget / text.sum(), rtol=1e-6)
            visible = visible & np.tri(24, dtype=bool)
        else:
            np.testing.assert_array_equal(found["input_ids"][row], masked["input_ids"][row])
            size = masked["mlm_weights"].shape[1]
            for name in ("mlm_positions", "mlm_labels", "mlm_weights"):
                np.testing.assert_array_equal(found[name][row, :size], masked[name][row])
                assert not found[name][row, size:].any()
        np.testing.assert_array_equal(found["attention_mask"][row], visible)


def test_the_loss_by_hand(encoder, make_batch, random_variables):
    """A token is predicted from the output one before it; metrics of each kind."""
    pretrainer = Pretrainer(encoder, {"mntp": lambda: make(causal_share=0.5, masked_lm_prob=0.3)})
    batch = make_batch(8, 24)
    variables = random_variables(pretrainer, batch, train=False)
    losses, metrics = jax.jit(functools.partial(pretrainer.apply, train=False))(variables, batch)

    def everywhere(module, batch):
        prepared = module.prepare(batch, train=False)
        sequence = module.encoder(prepared, train=False).sequence
        # The head of the MLM, at every position.
        at = jnp.broadcast_to(jnp.arange(24), (8, 24))
        hidden, bias = mlm.Objective.head(module.mntp, module.encoder, sequence, at)
        return prepared, mlm.output_logits(module.encoder, hidden, bias)

    prepared, logits = jax.device_get(pretrainer.apply(variables, batch, method=everywhere))
    log_probs = logits - scipy.special.logsumexp(logits, axis=-1, keepdims=True)
    sums, hits = np.zeros((2, 2)), 0.0
    for row, n in np.argwhere(prepared["mlm_weights"] > 0):
        position, weight = prepared["mlm_positions"][row, n], prepared["mlm_weights"][row, n]
        label, kind = batch["input_ids"][row, position], prepared["lm_kind"][row]
        sums[kind] += weight * np.array([-log_probs[row, position - 1, label], 1.0])
        hits += weight * (log_probs[row, position - 1].argmax() == label)
    assert sums[:, 1].all()
    np.testing.assert_allclose(losses["mntp"], sums.sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(metrics["mntp/masked_loss"], sums[0], rtol=1e-4)
    np.testing.assert_allclose(metrics["mntp/causal_loss"], sums[1], rtol=1e-4)
    assert metrics["mntp/accuracy"][0] == pytest.approx(float(hits), abs=1e-4)


def test_logits_of_all_positions_are_not_materialised(encoder, make_batch, random_variables):
    """Invariant 6, for rows of which some predict every token."""
    pretrainer = Pretrainer(encoder, {"mntp": lambda: make(causal_share=0.5, z_loss=0.1)})
    batch = make_batch(8, 24)
    variables = random_variables(pretrainer, batch, train=False)

    def loss(params):
        return pretrainer.apply({"params": params}, batch, train=False)[0]["mntp"][0]

    program = str(jax.make_jaxpr(jax.grad(loss))(variables["params"]))
    shapes = {tuple(map(int, s.split(","))) for s in re.findall(r"f32\[([\d,]+)\]", program)}
    largest = max(np.prod(shape) // VOCABULARY for shape in shapes if shape[-1] == VOCABULARY)
    assert largest == 8 * 3


def test_tokens_without_one_before_them_are_not_predicted(encoder):
    """Not at the start of a row, nor at that of a packed text."""
    ids = jnp.full((1, 8), 9)
    pack_ids = jnp.asarray([[1, 1, 1, 2, 2, 3, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": pack_ids > 0, "pack_ids": pack_ids}
    found = make().apply({}, batch, method="maskable")
    np.testing.assert_array_equal(found[0], [0, 1, 1, 0, 1, 0, 0, 0])


def test_the_masked_share_falls_over_the_run(encoder, make_batch):
    """Linearly with the step of the trainer; evaluation has that of the end."""
    objective = make(masked_lm_prob=0.4, final_masked_lm_prob=0.2, num_train_steps=10)
    batch = make_batch(6, 32)
    text = np.asarray(batch["attention_mask"].sum(axis=1)) - 2

    def budgets(batch):
        return prepare(objective, encoder, batch)["mlm_weights"].sum(axis=1)

    for step, share in ((0.0, 0.4), (5.0, 0.3), (10.0, 0.2), (25.0, 0.2)):
        found = budgets(batch | {"train_step": jnp.full(6, step)})
        np.testing.assert_array_equal(found, np.round(np.float32(share) * text))
    np.testing.assert_array_equal(budgets(batch), np.round(np.float32(0.2) * text))


def test_the_trainer_provides_the_step(encoder, make_batch):
    """The step of the state; with a budget, the position in the schedule."""
    seen = []

    class Spy(Objective):
        def prepare(self, encoder, batch, *, train):
            seen.append(batch["train_step"])
            raise StopIteration

    batch = make_batch(4, 8)
    state = types.SimpleNamespace(step=jnp.asarray(7), params={}, carry=None, average=None)
    module = Pretrainer(encoder, {"mntp": lambda: Spy(MASK, SPECIAL, VOCABULARY)})
    step = make_train_step(module, optax.identity(), lambda step: step, seed=0)
    for more in ({}, {"schedule_step": jnp.full(4, 3.5)}):
        with pytest.raises(StopIteration):
            step(state, batch | more)
    np.testing.assert_array_equal(seen, [[7.0] * 4, [3.5] * 4])
