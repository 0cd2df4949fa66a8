"""Several seeds, one compilation: the seed is an argument of the programs, not a constant."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from bertjax.interfaces import Batch, Params
from bertjax.train import sharding
from bertjax.train.state import TrainState, create, unboxed
from bertjax.train.step import Metrics, make_train_step
from bertjax.train.trainer import Held, Trainer


def for_seeds(
    trainer: Trainer,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    batch: Mapping[str, np.ndarray],
    *,
    rules: Sequence[tuple],
    attention_kernel: str = "",
) -> Callable[[int], Trainer]:
    """Builds seed -> what `make_trainer` would make of it, compiled for all seeds together.

    Args:
      trainer: Of any seed.
      optimizer: As the trainer's.
      schedule: As the trainer's.
      batch: Any host batch; only its names, types and ranks count.
      rules: As the trainer's.
      attention_kernel: As the trainer's.
    """
    template = {name: jnp.zeros((1, *rows.shape[1:]), rows.dtype) for name, rows in batch.items()}
    template["example_key"] = jax.random.split(jax.random.key(0), 1)
    placed = jax.tree.map(lambda leaf: leaf.sharding, trainer.shapes)
    still = jax.tree.map(lambda leaf: leaf.sharding, trainer.frozen)
    rows = sharding.batch_sharding(trainer.mesh)

    def create_state(seed: Array, frozen: Params) -> TrainState:
        state = unboxed(create(trainer.pretrainer, optimizer, template, seed))
        return state.replace(params=trainer.pretrainer.begin(state.params, frozen))

    def train_step(
        state: TrainState, batch: Batch, seed: Array, frozen: Params
    ) -> tuple[TrainState, Metrics]:
        step = make_train_step(
            trainer.pretrainer, optimizer, schedule, seed=seed, **trainer.step_options
        )
        return step(state, batch, frozen)

    compiled_create = jax.jit(create_state, out_shardings=placed)
    compiled_step = jax.jit(
        sharding.on_mesh(train_step, trainer.mesh, rules, attention_kernel),
        donate_argnums=0,
        in_shardings=(placed, rows, None, still),
        out_shardings=(placed, None),
    )

    def of_seed(seed: int) -> Trainer:
        arguments = (np.uint32(seed), trainer.frozen)
        return dataclasses.replace(
            trainer,
            create_state=Held(compiled_create, arguments),
            train_step=Held(compiled_step, arguments),
        )

    return of_seed
