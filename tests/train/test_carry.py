"""The carry between batches: threading, accumulation, placement, skipped updates, checkpoints."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.models import elmo, xlnet
from bertjax.objectives import bidirectional_lm, permutation_lm
from bertjax.pretrainer import Pretrainer
from bertjax.train import sharding
from bertjax.train.checkpoint.manager import Checkpoints

B, L, V, T = 8, 14, 36, 6
XLNET = xlnet.Model(
    V,
    16,
    2,
    4,
    24,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.2,  # ten times the published: memory has to matter to the loss
    mem_len=T,
)
ELMO = elmo.Model(V, 16, 2, 24, ((1, 4), (2, 8)), 4, 1, 6, hidden_dropout_prob=0.0)
PRETRAINERS = {
    "xlnet": Pretrainer(
        XLNET, {"permutation_lm": lambda: permutation_lm.Objective((0, 2, 3), whole_word=False)}
    ),
    "elmo": Pretrainer(
        ELMO, {"bidirectional_lm": lambda: bidirectional_lm.Objective((0, 2, 3), unk_id=1)}
    ),
}
SHAPES = {
    # Hidden states of the previous tokens, and their mask.
    "xlnet": {"states": (B, 2, T, 16), "filled": (B, T)},
    # Of two layers in each direction: the cell state, and the last output.
    "elmo": {"cell": (B, 2, 2, 24), "hidden": (B, 2, 2, 8)},
}


def batch_of(step):
    generator = np.random.default_rng(step)
    attention_mask = np.arange(L) < generator.integers(L // 2, L + 1, B)[:, None]
    ids = np.where(attention_mask, generator.integers(5, V, (B, L)), 0).astype(np.int32)
    return {
        "input_ids": ids,
        "attention_mask": attention_mask,
        "memory_mask": attention_mask & (generator.random((B, L)) < 0.9),
        "is_continuation": generator.random(B) < 0.7,
        "example_id": np.arange(B, dtype=np.uint32),
        "char_ids": generator.integers(0, 256, (V, 6), np.int32)[ids],
    }


@pytest.fixture(scope="module")
def trainer(small_trainer):
    def make(name, **changes):
        return small_trainer(PRETRAINERS[name], optax.identity(), batch_of(0), **changes)

    return make


@pytest.fixture(scope="module")
def steps(take_steps):
    return lambda own_trainer, state, first, last: take_steps(
        own_trainer, batch_of, state, first, last
    )


@pytest.fixture(scope="module", params=["xlnet", pytest.param("elmo", marks=pytest.mark.slow)])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def own_trainer(name, trainer):
    return trainer(name)


@pytest.fixture(scope="module")
def four_steps(own_trainer, steps):
    """Four steps in one piece, on one device."""
    state, losses = steps(own_trainer, own_trainer.create_state(), 0, 4)
    return jax.tree.map(np.asarray, state), losses


def leaves(state):
    (carried,) = state.carry["encoder"].values()
    return {name: np.asarray(array) for name, array in carried.items()}


def test_the_carry_is_initially_zero_with_a_row_per_example(name, own_trainer):
    empty = leaves(own_trainer.create_state())
    assert {key: array.shape for key, array in empty.items()} == SHAPES[name]
    assert not any(array.any() for array in empty.values())


def test_the_next_step_receives_the_carry_of_the_last(own_trainer, four_steps, steps):
    losses = []
    for forget in (False, True):
        state, _ = steps(own_trainer, own_trainer.create_state(), 0, 3)
        assert all(array.any() for array in leaves(state).values())
        if forget:
            state = state.replace(carry=jax.tree.map(jnp.zeros_like, state.carry))
        losses += steps(own_trainer, state, 3, 4)[1]
    assert losses[0] == four_steps[1][3]
    assert abs(losses[0] - losses[1]) > 1e-4


@pytest.mark.parametrize(
    ("microbatches", "devices", "axes"),
    [(4, 1, {}), (1, 8, {"data": 2, "fsdp": 2, "tensor": 2}), (2, 2, {"data": 2})],
)
@pytest.mark.slow
def test_microbatches_and_meshes_carry_the_same(
    name, microbatches, devices, axes, four_steps, trainer, steps
):
    other = trainer(name, microbatches=microbatches, devices=devices, **axes)
    state, losses = steps(other, other.create_state(), 0, 4)
    np.testing.assert_allclose(losses, four_steps[1], rtol=2e-5)
    expected = leaves(four_steps[0])
    for key, got in leaves(state).items():
        np.testing.assert_allclose(got, expected[key], rtol=1e-3, atol=2e-5)
    for array in jax.tree.leaves(state.carry):
        assert array.sharding.num_devices == devices


def test_a_resumed_run_restores_the_carry(own_trainer, four_steps, steps, tmp_path):
    state, _ = steps(own_trainer, own_trainer.create_state(), 0, 2)
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(state, step=2)
        checkpoints.wait()
        resumed, _ = checkpoints.resume(own_trainer.shapes)
    state, losses = steps(own_trainer, resumed, 2, 4)
    assert losses == four_steps[1][2:]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, state), four_steps[0])


def test_a_skipped_update_keeps_the_carry(own_trainer, steps):
    state, _ = steps(own_trainer, own_trainer.create_state(), 0, 1)
    before = {key: array.copy() for key, array in leaves(state).items()}
    params = jax.tree.map(lambda leaf: leaf * np.nan, state.params)
    state, _ = own_trainer.train_step(
        state.replace(params=params), sharding.to_global(batch_of(1), own_trainer.mesh)
    )
    assert state.skipped == 1
    jax.tree.map(np.testing.assert_array_equal, leaves(state), before)


def test_evaluation_has_no_carry(own_trainer):
    """Also if rows of the batch are continuations."""
    state = own_trainer.create_state()
    batch = batch_of(1)
    alone = {
        name: rows for name, rows in batch.items() if name not in ("memory_mask", "is_continuation")
    }
    got, expected = (
        own_trainer.eval_step(state.params, sharding.to_global(rows, own_trainer.mesh))
        for rows in (batch, alone)
    )
    (loss,) = (metric for metric in got if metric.endswith("_lm/loss"))
    assert got[loss][0] == expected[loss][0]


def test_memory_costs_flops(trainer):
    own_trainer = trainer("xlnet")
    rows = batch_of(0)
    plain = {name: values for name, values in rows.items() if name != "memory_mask"}
    assert own_trainer.flops(rows, (B, L)) > 1.05 * own_trainer.flops(plain, (B, L))
