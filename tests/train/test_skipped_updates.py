"""Nonfinite updates are skipped and counted; the schedule follows the step number."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import catalog
from bertjax.pretrainer import Encoded, Objective, Pretrainer
from bertjax.train import optimizer
from bertjax.train.state import create, unbox
from bertjax.train.step import make_train_step


class Root(nn.Module):
    """An encoder of one parameter: x becomes sqrt(parameter) x."""

    initial: float
    vocab_size = hidden_size = embedding_size = 1
    hidden_act = "linear"
    initializer_range = layer_norm_eps = 0.0
    precision = "float32"

    @nn.compact
    def __call__(self, batch, *, train):
        parameter = self.param("parameter", nn.initializers.constant(self.initial), (1,))
        return Encoded((jnp.sqrt(parameter) * batch["input_ids"])[..., None])

    def attend(self, hidden):
        return hidden


class Mean(Objective):
    """The loss is the mean output."""

    weight: float = 1.0
    rewrites_input = False
    predicts_tokens = False
    metrics = ()

    def prepare(self, encoder, batch, *, train):
        return batch

    def loss(self, encoder, encoded, batch, *, train):
        weights = batch["example_weight"]
        return (weights * encoded.sequence[:, 0, 0]).sum(), weights.sum(), {}


def root_run(initial, rows, microbatches=1, steps=None):
    """Train on batches of one number per row; yields states and metrics."""
    module = Pretrainer(Root(initial), {"mean": Mean})
    direction = optimizer.make("adamw", max_grad_norm=0.0)
    template = {"input_ids": jnp.ones((2, 1)), "example_weight": jnp.ones(2)}
    state = unbox(create(module, direction, template, 0))
    step = jax.jit(
        make_train_step(
            module, direction, lambda step: 0.1 * (step + 1), seed=0, microbatches=microbatches
        )
    )
    yield state, None
    for row in rows:
        numbers = {"input_ids": jnp.asarray(row)[:, None], "example_weight": jnp.ones(2)}
        state, metrics = step(state, numbers)
        yield state, metrics


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_loss_that_is_not_finite_skips_the_update(microbatches):
    rows = [[1.0, 2.0], [1.0, np.nan], [np.inf, 1.0], [2.0, 1.0]]
    states, metrics = zip(*root_run(4.0, rows, microbatches), strict=True)
    for index, (skipped, in_a_row) in enumerate([(0, 0), (1, 1), (2, 2), (2, 0)], start=1):
        assert states[index].step == index
        assert states[index].skipped == skipped
        assert states[index].skipped_in_a_row == in_a_row
        assert metrics[index]["learning_rate"] == pytest.approx(0.1 * index)
        assert metrics[index]["skipped"] == (index in (2, 3))
        assert np.isfinite(metrics[index]["loss"]) == (index not in (2, 3))
    for index in (2, 3):
        for old, new in zip(
            jax.tree.leaves((states[1].params, states[1].opt_state)),
            jax.tree.leaves((states[index].params, states[index].opt_state)),
            strict=True,
        ):
            np.testing.assert_array_equal(old, new)
    moved = [float(state.params["encoder"]["parameter"][0]) for state in states]
    assert moved[1] != moved[0]
    assert moved[4] != moved[3]
    # Skipped updates do not shift the rate: the second update is that of the fourth step.
    assert states[4].opt_state[1].count == 2


def test_a_gradient_that_is_not_finite_skips_the_update():
    """sqrt has the value 0 and an infinite slope at 0."""
    (before, _), (after, metrics) = root_run(0.0, [[1.0, 2.0]])
    assert metrics["loss"] == 0
    assert not np.isfinite(metrics["gradient_norm"])
    assert metrics["skipped"] == 1
    assert after.skipped == after.skipped_in_a_row == after.step == 1
    assert after.params["encoder"]["parameter"] == before.params["encoder"]["parameter"] == 0
    assert after.opt_state[1].count == 0


@pytest.mark.parametrize("name", catalog.names(optimizer.FOLDER))
def test_a_skipped_update_keeps_the_state_of_every_optimizer(name):
    params = {"encoder": {"kernel": jnp.ones((3, 4)), "embedding": jnp.ones((5, 3))}}
    transform = optimizer.make(name)

    @jax.jit
    def update(state, gradient, finite):
        extra = {"finite": finite, "obj_fn": lambda params: params["encoder"]["kernel"].sum()}
        return transform.update(gradient, state, params, **extra)[1]

    before = update(transform.init(params), params, True)
    skipped = update(before, jax.tree.map(lambda array: array * np.nan, params), False)
    changed = update(before, params, True)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(skipped), strict=True):
        np.testing.assert_array_equal(old, new)
    assert any(
        not np.array_equal(old, new)
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(changed), strict=True)
    )


def test_the_learning_rate_follows_the_step_number():
    """The first update of AdamW is the learning rate times the sign, without weight decay."""
    _, (after, metrics) = root_run(4.0, [[1.0, 2.0]])
    update = 0.1 * (1 + 0.01 * 4.0)
    assert after.params["encoder"]["parameter"][0] == pytest.approx(4.0 - update, rel=1e-5)
    assert metrics["gradient_norm"] == pytest.approx(1.5 * 0.5 / 2)
