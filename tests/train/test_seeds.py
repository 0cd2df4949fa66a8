"""Seeds that share one compilation train like seeds that are compiled separately."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.dropout import Dropout
from bertjax.pretrainer import Encoded, Objective, Pretrainer
from bertjax.train import optimizer, sharding
from bertjax.train.trainer import make_seed_trainers, make_trainer


class Table(nn.Module):
    """An encoder that is an embedding table."""

    vocab_size: int = 13
    hidden_size: int = 6
    embedding_size: int = 6
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    precision: str = "float32"

    @nn.compact
    def __call__(self, batch, *, train):
        table = self.param("table", nn.initializers.normal(1.0), (13, 6))
        return Encoded(Dropout(0.5)(table[batch["input_ids"]], train=train))

    def attend(self, hidden):
        raise AssertionError("no vocabulary")


class Square(Objective):
    """Loss: a squared projection of the output, weighted by random keys of examples."""

    weight: float = 1.0
    rewrites_input = False
    predicts_tokens = False
    metrics = ()

    def prepare(self, encoder, batch, *, train):
        return batch

    @nn.compact
    def loss(self, encoder, encoded, batch, *, train):
        kernel = self.param("kernel", nn.initializers.normal(1.0), (6,))
        samples = jax.vmap(jax.random.uniform)(batch["example_key"])
        losses = samples * jnp.square(encoded.sequence @ kernel).sum(axis=1)
        return losses.sum(), jnp.float32(len(losses)), {}


@pytest.fixture(scope="module")
def parts():
    rows = {"input_ids": np.arange(24, dtype=np.int32).reshape(8, 3) % 13}
    mesh = sharding.make_mesh({"data": 4, "fsdp": 2, "tensor": 1, "sequence": 1})
    rules = {"rules": sharding.RULES}
    options = {"microbatches": 2, "grad_reduce_in_bf16": True, "shard_optimizer": True}
    pretrainer = Pretrainer(Table(), {"square": Square})
    learned = (optimizer.make("adamw"), lambda step: 0.1 / (1 + step))

    def alone(seed):
        return make_trainer(pretrainer, *learned, rows, mesh=mesh, seed=seed, **rules, **options)

    together = make_seed_trainers(alone(0), *learned, rows, **rules)
    return alone, together, sharding.to_global(rows, mesh)


def two_steps(trainer, batch):
    state = trainer.create_state()
    for _ in range(2):
        state, metrics = trainer.train_step(state, batch)
    return jax.tree.map(np.asarray, (state, metrics))


def test_a_seed_does_not_depend_on_other_seeds(parts):
    alone, together, batch = parts
    for seed in (0, 3):
        expected, found = two_steps(alone(seed), batch), two_steps(together(seed), batch)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), expected, found)


def test_seeds_differ_in_parameters_and_in_randomness(parts):
    _, together, batch = parts
    tables = [together(seed).create_state().params["encoder"]["table"] for seed in (0, 3)]
    assert (tables[0] != tables[1]).all()
    states = [together(0).create_state() for _ in (0, 3)]
    losses = [
        float(together(seed).train_step(state, batch)[1]["loss"])
        for seed, state in zip((0, 3), states, strict=True)
    ]
    assert losses[0] != losses[1]
