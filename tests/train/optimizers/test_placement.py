"""Every optimizer on a mesh (invariant 5), and resumed from a checkpoint (invariant 3)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import catalog
from bertjax.models.bert import Model
from bertjax.objectives import mlm
from bertjax.pretrainer import Pretrainer
from bertjax.train import optimizer, sharding
from bertjax.train.checkpoint import trees
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.trainer import make_trainer

B, L, V = 8, 10, 32
MODEL = Model(
    vocab_size=V,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=L,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.3,
)
PRETRAINER = Pretrainer(
    MODEL, {"mlm": functools.partial(mlm.Objective, 4, (0, 2, 3), V, masked_lm_prob=0.5)}
)
QUICK = "adafactor"
"""Its state has other shapes than the parameters."""
NAMES = [
    pytest.param(name, marks=() if name == QUICK else pytest.mark.slow)
    for name in catalog.names(optimizer.FOLDER)
]
RATES = {"lion": 0.003, "adafactor": 0.3}
FIELDS = {
    # Above the noise of float32, which Adam would else scale up to whole steps.
    **{name: {"adam_eps": 1e-3} for name in ("lamb", "muon", "stable_adamw")},
    "schedule_free_adamw": {"adam_eps": 1e-3},
    "adamw": {"adam_eps": 1e-3, "lawa_every": 1, "lawa_window": 2},
    "adafactor": {"min_size_to_factor": 4, "ema_decay": 0.5},
}


def trainer_on(name, sizes, **more):
    sizes = dict.fromkeys(sharding.MESH_AXES, 1) | sizes
    mesh = sharding.make_mesh(sizes, jax.devices()[: np.prod(list(sizes.values()))])
    return make_trainer(
        PRETRAINER,
        optimizer.make(name, **FIELDS.get(name, {})),
        lambda step: jnp.asarray(RATES.get(name, 0.03)),
        batch_of(0),
        mesh=mesh,
        rules=sharding.RULES,
        seed=0,
        microbatches=1,
        **more,
    )


def batch_of(step):
    generator = np.random.default_rng(step)
    return {
        "input_ids": generator.integers(5, V, (B, L)).astype(np.int32),
        "attention_mask": np.ones((B, L), bool),
        "example_id": np.arange(B, dtype=np.int32),
    }


def take(trainer, state, first, last):
    for step in range(first, last):
        batch = sharding.to_global(batch_of(step), trainer.mesh)
        state, metrics = trainer.train_step(state, batch)
    return state, float(metrics["loss"])


@functools.cache
def alone(name):
    """A trainer on one device, its state after three steps as numpy arrays, and the last loss."""
    trainer = trainer_on(name, {})
    state, loss = take(trainer, trainer.create_state(), 0, 3)
    return trainer, jax.device_get(state), loss


def difference(got, expected):
    """The largest difference as a share of the largest value of an array.

    Biases of keys are left out: their gradient is zero but for noise, whose sign Lion follows.
    """
    got, expected = (trees.flatten_names(jax.device_get(state)) for state in (got, expected))
    assert got.keys() == expected.keys()
    return max(
        np.abs(got[name] - value).max() / (np.abs(value).max() + 1e-3)
        for name, value in expected.items()
        if "key/bias" not in name
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_mesh_with_a_sharded_optimizer_changes_only_placement(name):
    _, expected, loss = alone(name)
    trainer = trainer_on(name, {"data": 2, "fsdp": 2, "tensor": 2}, shard_optimizer=True)
    start = jax.device_put(
        jax.device_get(alone(name)[0].create_state()),
        jax.tree.map(lambda leaf: leaf.sharding, trainer.shapes),
    )
    state, found = take(trainer, start, 0, 3)
    assert found == pytest.approx(loss, rel=1e-4)
    assert difference(state, expected) < 2e-3
    large = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.size >= 32]
    assert large
    assert all(not leaf.sharding.is_fully_replicated for leaf in large)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_has_the_same_bits(name, tmp_path):
    trainer, expected, _ = alone(name)
    state, _ = take(trainer, trainer.create_state(), 0, 2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, step=2)
    with Checkpoints(tmp_path) as checkpoints:
        restored, _ = checkpoints.resume(trainer.shapes)
    state, _ = take(trainer, restored, 2, 3)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), expected)
