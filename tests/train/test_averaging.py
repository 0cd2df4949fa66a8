"""Averages of weights: by hand, against optax, in the training step and in checkpoints."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax import build
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.pretrainer import Encoded, Pretrainer
from bertjax.train import optimizer
from bertjax.train.averaging import (
    NO_AVERAGE,
    ExponentialMovingAverage,
    LatestWeightAveraging,
    ScheduleFree,
)
from bertjax.train.checkpoint import origin, restore
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.state import create, unbox
from bertjax.train.step import make_train_step

V, D = 13, 6
DECAY = 0.1


class Table(nn.Module):
    """An encoder that is an embedding table."""

    vocab_size: int = V
    hidden_size: int = D
    embedding_size: int = D
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    precision: str = "float32"

    @nn.compact
    def __call__(self, batch, *, train):
        table = self.param("embedding", nn.initializers.normal(1.0), (V, D))
        return Encoded(table[batch["input_ids"]])

    def attend(self, hidden):
        raise AssertionError("no vocabulary")


class Square(nn.Module):
    """The squared distance of a projection from one; an example may make the loss infinite."""

    weight: float = 1.0
    rewrites_input = False
    predicts_tokens = False
    metrics = ()

    def prepare(self, encoder, batch, *, train):
        return batch

    @nn.compact
    def loss(self, encoder, encoded, batch, *, train):
        kernel = self.param("kernel", nn.initializers.normal(1.0), (D,))
        losses = jnp.square(encoded.sequence @ kernel - 1).sum(axis=1) * batch["factor"]
        return losses.sum(), jnp.float32(len(losses)), {}


PRETRAINER = Pretrainer(Table(), {"square": Square})


def batch_of(step, factor=1.0):
    ids = np.random.default_rng(step).integers(0, V, (4, 3))
    return {"input_ids": jnp.asarray(ids), "factor": jnp.full(4, factor, jnp.float32)}


def rate(step):
    """A warmup, so that the weights of the average differ."""
    return 0.1 * jnp.minimum((step + 1) / 3, 1.0)


def make_optimizer(name, fields):
    return optimizer.make(name, max_grad_norm=0.0, weight_decay=DECAY, **fields)


@functools.cache
def step_of(name, **fields):
    """The training step."""
    return jax.jit(make_train_step(PRETRAINER, make_optimizer(name, fields), rate, seed=0))


def run(name, batches, **fields):
    """The states before the first and after every step."""
    step = step_of(name, **fields)
    states = [unbox(create(PRETRAINER, make_optimizer(name, fields), batch_of(0), 0))]
    for batch in batches:
        states.append(step(states[-1], batch)[0])
    return states


def gradient_of(params, batch):
    def loss(params):
        value, weight = PRETRAINER.apply({"params": params}, batch, train=True)[0]["square"]
        return value / weight

    return jax.grad(loss)(params)


def close(got, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, expected)


def test_schedule_free_adamw_is_that_of_optax():
    """optax keeps y and z and recomputes x; the state here is z and x."""
    batches = [batch_of(step) for step in range(6)]
    states = run("schedule_free_adamw", batches, adam_b1=0.8, adam_b2=0.9)
    y = states[0].params
    # optax counts the steps of the average from 1, those of the direction from 0.
    optax_optimizer = optax.contrib.schedule_free(
        optax.chain(
            optax.scale_by_rms(0.9, 1e-8, eps_in_sqrt=False, bias_correction=True),
            optax.add_decayed_weights(DECAY),
            optax.scale_by_learning_rate(rate),
        ),
        lambda step: rate(step - 1),
        b1=0.8,
    )
    state = optax_optimizer.init(y)
    for batch, own_state in zip(batches, states[1:], strict=True):
        updates, state = optax_optimizer.update(gradient_of(y, batch), state, y)
        y = optax.apply_updates(y, updates)
        close(own_state.params, state.z, rtol=1e-4, atol=1e-5)
        expected = optax.contrib.schedule_free_eval_params(state, y)
        close(own_state.evaluation_params, expected, rtol=1e-4, atol=1e-5)


def test_a_moving_average_by_hand_leaves_training_unchanged():
    batches = [batch_of(step) for step in range(4)]
    plain = run("adamw", batches)
    states = run("adamw", batches, ema_decay=0.3)
    average = np.asarray(plain[0].params["encoder"]["embedding"], np.float64)
    # The decay of step t is at most (1 + t) / (10 + t).
    for decay, before, state in zip([0.1, 2 / 11, 0.25, 0.3], plain[1:], states[1:], strict=True):
        close(state.params, before.params, rtol=0)
        newest = np.asarray(state.params["encoder"]["embedding"], np.float64)
        average = decay * average + (1 - decay) * newest
        found = state.evaluation_params["encoder"]["embedding"]
        np.testing.assert_allclose(found, average, rtol=1e-5)
    assert plain[1].evaluation_params is plain[1].params


LAWA = {"lawa_every": 2, "lawa_window": 3}


def test_the_mean_of_the_latest_weights_by_hand_also_when_resumed(tmp_path):
    """Four snapshots, the fourth in place of the first; step 6 is skipped (invariant 3)."""
    batches = [batch_of(step, np.inf if step == 5 else 1.0) for step in range(9)]
    plain = run("adamw", batches)
    states = run("adamw", batches, **LAWA)
    weights = [np.asarray(state.params["encoder"]["embedding"], np.float64) for state in plain]
    snapshots = [[0], [1], [2], [2], [2, 4], [2, 4], [2, 4, 6], [2, 4, 6], [4, 6, 8], [4, 6, 8]]
    np.testing.assert_array_equal(weights[6], weights[5])
    for before, state, steps in zip(plain, states, snapshots, strict=True):
        close(state.params, before.params, rtol=0)
        found = state.evaluation_params["encoder"]["embedding"]
        expected = np.mean([weights[step] for step in steps], axis=0)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(states[5], step=5)
    restored = restore.load(tmp_path / "checkpoints" / "5", states[0])
    for batch in batches[5:]:
        restored = step_of("adamw", **LAWA)(restored, batch)[0]
    close(restored, states[-1], rtol=0)


@pytest.mark.parametrize(("name", "decay"), [("schedule_free_adamw", 0.0), ("adamw", 0.9)])
def test_a_skipped_update_leaves_the_average_unchanged(name, decay):
    states = run(name, [batch_of(0), batch_of(1, np.inf)], ema_decay=decay)
    close(states[2].average, states[1].average, rtol=0)
    assert int(states[2].skipped) == 1


def test_other_runs_start_from_the_average_of_a_checkpoint(tmp_path):
    state = run("adamw", [batch_of(0)], ema_decay=0.9)[-1]
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, step=1)
    folder = tmp_path / "checkpoints" / "1"
    assert restore.evaluation_prefix(folder) == "average/params"
    expected = state.evaluation_params["encoder"]
    assert np.abs(expected["embedding"] - state.params["encoder"]["embedding"]).max() > 1e-3
    loaded = origin.load_params(folder, state.params)
    close(loaded["encoder"], expected, rtol=0)
    started = state.with_params(loaded)
    close(started.evaluation_params, loaded, rtol=0)
    source = origin.PretrainedSource(tmp_path, folder, {})
    assert source.description()["encoder"] == origin.trees.fingerprint(expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "schedule_free_adamw"}, "schedule='linear', expected 'constant' with schedule_f"),
        (
            {"name": "schedule_free_adamw", "schedule": "constant", "ema_decay": 0.9},
            "ema_decay=0.9, expected 0 with schedule_free_adamw",
        ),
        (
            {"name": "schedule_free_adamw", "schedule": "constant", **LAWA},
            "lawa_every=2, expected 0 with schedule_free_adamw",
        ),
        (LAWA | {"ema_decay": 0.9}, "ema_decay=0.9, lawa_every=2, expected one average of the we"),
        ({"lawa_every": 100}, "lawa_every=100, lawa_window=0, expected both or neither"),
        ({"lawa_window": 5}, "lawa_every=0, lawa_window=5, expected both or neither"),
    ],
)
def test_combinations_without_a_meaning_are_refused(fields, message):
    config = load_config(
        "configs/bert.py:tiny", {f"optimizer.{name}": value for name, value in fields.items()}
    )
    with pytest.raises(UserError, match=message):
        build.check(config)


def test_the_config_selects_the_average():
    def selected(**fields):
        overrides = {f"optimizer.{name}": value for name, value in fields.items()}
        return build.make_optimizer(load_config("configs/bert.py:tiny", overrides)).averaging

    assert selected() is NO_AVERAGE
    assert selected(ema_decay=0.5) == ExponentialMovingAverage(0.5)
    assert selected(**LAWA) == LatestWeightAveraging(2, 3)
    chosen = selected(name="schedule_free_adamw", schedule="constant", adam_b1=0.7)
    assert chosen == ScheduleFree(0.7)
