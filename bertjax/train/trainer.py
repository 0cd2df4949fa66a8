"""The compiled functions of a run, and the shardings of its state.

Several seeds share one compilation: the seed is an argument of the programs, not a constant.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from bertjax.interfaces import Batch, Params, extent
from bertjax.pretrainer import Pretrainer
from bertjax.train import report, sharding
from bertjax.train.checkpoint import origin
from bertjax.train.state import TrainState, create, frozen_of, unboxed
from bertjax.train.step import (
    NOTHING,
    EvalStep,
    Metrics,
    Microbatches,
    TrainStep,
    make_eval_step,
    make_train_step,
)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """What a run is made of once its shapes are known.

    Attributes:
      mesh: The devices.
      pretrainer: The encoder and its objectives.
      shapes: The state as shapes with shardings, which is what a checkpoint is restored onto.
      frozen: Parameters that no step changes, on the mesh: no checkpoint holds them.
      create_state: Makes the first state, on the mesh.
      train_step: Jitted; gives its state away.
      eval_step: Jitted.
      step_options: Of `make_train_step`, with which others compile the step anew.
    """

    mesh: Mesh
    pretrainer: Pretrainer
    shapes: PyTree
    frozen: Params
    create_state: Callable[[], TrainState]
    train_step: TrainStep
    eval_step: EvalStep
    step_options: Mapping[str, Any]

    def flops(self, batch: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> int:
        """FLOPs of the model for a step on a batch like this one, but of the shape (B, L)."""
        (batch_size, length), own = shape, extent(batch)[1]

        def longer(size: int) -> int:
            return length if size == own else size

        rows = {
            name: jax.ShapeDtypeStruct((batch_size, *map(longer, values.shape[1:])), values.dtype)
            for name, values in batch.items()
        }
        rows["example_key"] = jax.eval_shape(lambda: _keys(batch_size))
        variables = {"params": self.shapes.params}
        if self.shapes.carry is not None:
            variables["carry"] = self.shapes.carry

        def losses(variables, frozen, rows):
            variables = {**variables, "frozen": frozen}
            return self.pretrainer.apply(variables, rows, train=False, mutable=["carry"])[0]

        return report.training_flops(losses, variables, self.frozen, rows)


@dataclasses.dataclass(frozen=True)
class BoundStep:
    """A compiled function together with its last arguments."""

    function: Callable[..., Any]
    arguments: tuple

    def __call__(self, *arguments):
        return self.function(*arguments, *self.arguments)

    def compile(self, *arguments) -> "BoundStep":
        """The same for arguments of these shapes alone; `function` then tells what it needs."""
        return BoundStep(self.function.lower(*arguments, *self.arguments).compile(), self.arguments)


def make_trainer(
    pretrainer: Pretrainer,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    batch: Mapping[str, np.ndarray],
    *,
    mesh: Mesh,
    rules: Sequence[tuple],
    seed: int,
    microbatches: Microbatches,
    batch_size: int = 1,
    frozen: Mapping[str, PyTree] = NOTHING,
    shard_optimizer: bool = False,
    grad_reduce_in_bf16: bool = False,
    attention_kernel: str = "",
) -> Trainer:
    """Builds everything that is compiled for a run.

    Args:
      pretrainer: The encoder and its objectives.
      optimizer: From gradient to direction.
      schedule: Learning rate of each step.
      batch: Any host batch of the run; only its names, types and ranks count.
      mesh: The devices.
      rules: Which mesh axis shards which logical axis.
      seed: Of parameters, masks and dropout.
      microbatches: Parts that a batch is worked on in.
      batch_size: Examples of a global batch, for models that carry something from batch to batch.
      frozen: Parameters that no step changes, as numpy arrays, by objective.
      shard_optimizer: Whether the optimizer's state is spread over the data axis as well.
      grad_reduce_in_bf16: Whether gradients meet along the data axis in bfloat16.
      attention_kernel: "" for what is best on these devices (`layers/attention_kernels.py`).

    Raises:
      UserError: an array does not divide over the mesh, or `frozen` is not what is expected.
    """
    template = {name: jnp.zeros((1, *rows.shape[1:]), rows.dtype) for name, rows in batch.items()}
    template["example_key"] = _keys(1)

    def boxed() -> TrainState:
        return create(pretrainer, optimizer, template, seed, batch_size)

    shapes = sharding.placed_shapes(jax.eval_shape(boxed), mesh, rules)
    options = {"microbatches": microbatches, "grad_reduce_in_bf16": grad_reduce_in_bf16}
    if shard_optimizer:
        shapes, options["gradient_placed"] = _spread(shapes)
    placed = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    wanted = jax.eval_shape(lambda: frozen_of(pretrainer, template))
    frozen = origin.place(frozen, sharding.placed_shapes(wanted, mesh, rules), "teacher")
    frozen_parts = jax.tree.map(lambda leaf: leaf.sharding, frozen)

    def first(frozen: Params) -> TrainState:
        state = unboxed(boxed())
        return state.replace(params=pretrainer.init_params(state.params, frozen))

    jax.eval_shape(first, frozen)  # what does not fit is told now
    rows = sharding.batch_sharding(mesh)
    train_step = make_train_step(pretrainer, optimizer, schedule, seed=seed, **options)

    def held(function: Callable, **options: Any) -> BoundStep:
        placed = sharding.on_mesh(function, mesh, rules, attention_kernel)
        return BoundStep(jax.jit(placed, **options), (frozen,))

    return Trainer(
        mesh=mesh,
        pretrainer=pretrainer,
        shapes=shapes,
        frozen=frozen,
        create_state=BoundStep(jax.jit(first, out_shardings=placed), (frozen,)),
        train_step=held(
            train_step,
            donate_argnums=0,
            in_shardings=(placed, rows, frozen_parts),
            out_shardings=(placed, None),
        ),
        eval_step=held(
            make_eval_step(pretrainer, seed=seed), in_shardings=(placed.params, rows, frozen_parts)
        ),
        step_options=options,
    )


def _spread(shapes: TrainState) -> tuple[TrainState, PyTree]:
    """The state with its optimizer's part cut along the data axis, and how gradients are, too."""
    spread = sharding.spread_over_data(shapes.params)
    gradient_placed = jax.tree.map(lambda leaf: leaf.sharding.spec, spread)
    return shapes.replace(opt_state=sharding.spread_over_data(shapes.opt_state)), gradient_placed


def _keys(batch_size: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), batch_size)


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
    frozen_parts = jax.tree.map(lambda leaf: leaf.sharding, trainer.frozen)
    rows = sharding.batch_sharding(trainer.mesh)

    def create_state(seed: Array, frozen: Params) -> TrainState:
        state = unboxed(create(trainer.pretrainer, optimizer, template, seed))
        return state.replace(params=trainer.pretrainer.init_params(state.params, frozen))

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
        in_shardings=(placed, rows, None, frozen_parts),
        out_shardings=(placed, None),
    )

    def of_seed(seed: int) -> Trainer:
        arguments = (np.uint32(seed), trainer.frozen)
        return dataclasses.replace(
            trainer,
            create_state=BoundStep(compiled_create, arguments),
            train_step=BoundStep(compiled_step, arguments),
        )

    return of_seed
