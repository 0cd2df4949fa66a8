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
from bertjax.layers.attention_kernels import XLA, with_kernel
from bertjax.pretrainer import Pretrainer
from bertjax.train import report, sharding
from bertjax.train.checkpoint import origin
from bertjax.train.state import TrainState, create, create_with_frozen, unbox
from bertjax.train.step import (
    NO_PARAMS,
    EvalStep,
    Metrics,
    Microbatches,
    make_eval_step,
    make_train_step,
)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The compiled functions of a run and the shapes of its state.

    Attributes:
      mesh: The devices.
      pretrainer: The encoder and its objectives.
      shapes: The state as shapes with shardings, the target of restoring a checkpoint.
      logical_axes: The names of the axes of each parameter, as partition specs.
      frozen: Parameters that are not trained, on the mesh; not part of checkpoints.
      create_state: Initialises the state, on the mesh.
      train_step: The jitted training step; donates its state.
      eval_step: The jitted evaluation step.
      step_options: Arguments of `make_train_step`, for compiling another step.
      known_flops: Results of `flops`, by the shapes of its arguments.
    """

    mesh: Mesh
    pretrainer: Pretrainer
    shapes: PyTree
    logical_axes: PyTree
    frozen: Params
    create_state: Callable[[], TrainState]
    train_step: "BoundStep"
    eval_step: EvalStep
    step_options: Mapping[str, Any]
    # Not copied by `dataclasses.replace`: another pretrainer has other FLOPs.
    known_flops: dict[tuple, int] = dataclasses.field(init=False, default_factory=dict)

    def flops(self, batch: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> int:
        """FLOPs of the model for a step on a batch like this one, but of the shape (B, L)."""
        key = (shape, *sorted((name, values.shape) for name, values in batch.items()))
        if key not in self.known_flops:
            self.known_flops[key] = self._count_flops(batch, shape)
        return self.known_flops[key]

    def _count_flops(self, batch: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> int:
        (batch_size, length), own_length = shape, extent(batch)[1]

        def resize(size: int) -> int:
            return length if size == own_length else size

        rows = {
            name: jax.ShapeDtypeStruct((batch_size, *map(resize, values.shape[1:])), values.dtype)
            for name, values in batch.items()
        }
        rows["example_key"] = jax.eval_shape(lambda: _keys(batch_size))
        variables = {"params": self.shapes.params}
        if self.shapes.carry is not None:
            variables["carry"] = self.shapes.carry

        # The matmuls inside a kernel are not counted, and the formula has as many.
        encoder = with_kernel(self.pretrainer.encoder, XLA)
        pretrainer = self.pretrainer.clone(encoder=encoder)

        def losses(variables, frozen, rows):
            variables = {**variables, "frozen": frozen}
            return pretrainer.apply(variables, rows, train=False, mutable=["carry"])[0]

        return report.training_flops(losses, variables, self.frozen, rows)


@dataclasses.dataclass(frozen=True)
class BoundStep:
    """A jitted function with its last arguments bound."""

    function: Callable[..., Any]
    arguments: tuple

    def __call__(self, *arguments):
        return self.function(*arguments, *self.arguments)

    def compile(self, *arguments) -> "BoundStep":
        """Compiles ahead of time for these shapes; `function` then has memory and cost analyses."""
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
    frozen: Mapping[str, PyTree] = NO_PARAMS,
    shard_optimizer: bool = False,
    grad_reduce_in_bf16: bool = False,
    attention_kernel: str = "",
) -> Trainer:
    """Builds the compiled functions of a run.

    Args:
      pretrainer: The encoder and its objectives.
      optimizer: Maps gradients to directions.
      schedule: Learning rate of each step.
      batch: Any host batch of the run; only its names, types and ranks matter.
      mesh: The devices.
      rules: The mesh axes of each logical axis.
      seed: Seed of parameters, masks and dropout.
      microbatches: Number of microbatches of a step.
      batch_size: Number of examples of a global batch, for models with a carry.
      frozen: Parameters that are not trained, as numpy arrays, by objective.
      shard_optimizer: Whether the optimizer's state is sharded over the data axis as well.
      grad_reduce_in_bf16: Whether gradients are all-reduced over the data axis in bfloat16.
      attention_kernel: Replaces the encoder's field of this name unless "".

    Raises:
      UserError: an array does not divide over the mesh, `frozen` has other shapes, or the encoder
        has no attention kernels.
    """
    pretrainer = pretrainer.clone(encoder=with_kernel(pretrainer.encoder, attention_kernel))

    @jax.jit  # traced once, for the shapes here and in `init_state`
    def initial() -> tuple[TrainState, Params]:
        return create_with_frozen(pretrainer, optimizer, _one_example(batch), seed, batch_size)

    shapes, frozen_shapes = sharding.sharded_shapes(boxed := jax.eval_shape(initial), mesh, rules)
    options = {"microbatches": microbatches, "grad_reduce_in_bf16": grad_reduce_in_bf16}
    if shard_optimizer:
        shapes, options["gradient_specs"] = _shard_optimizer(shapes)
    placed = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    frozen = origin.place(frozen, frozen_shapes, "teacher")
    frozen_parts = jax.tree.map(lambda leaf: leaf.sharding, frozen)

    def init_state(frozen: Params) -> TrainState:
        state = unbox(initial()[0])
        return state.with_params(pretrainer.init_params(state.params, frozen))

    jax.eval_shape(init_state, frozen)  # raises errors of shapes before anything is compiled
    rows = sharding.batch_sharding(mesh)

    def bind(function: Callable, **options: Any) -> BoundStep:
        placed = sharding.on_mesh(function, mesh, rules)
        return BoundStep(jax.jit(placed, **options), (frozen,))

    return Trainer(
        mesh=mesh,
        pretrainer=pretrainer,
        shapes=shapes,
        logical_axes=sharding.logical_axes(boxed[0].params),
        frozen=frozen,
        create_state=BoundStep(jax.jit(init_state, out_shardings=placed), (frozen,)),
        train_step=bind(
            make_train_step(pretrainer, optimizer, schedule, seed=seed, **options),
            donate_argnums=0,
            in_shardings=(placed, rows, frozen_parts),
            out_shardings=(placed, None),
        ),
        eval_step=bind(
            make_eval_step(pretrainer, seed=seed), in_shardings=(placed.params, rows, frozen_parts)
        ),
        step_options=options,
    )


def _shard_optimizer(shapes: TrainState) -> tuple[TrainState, PyTree]:
    """Shards the optimizer's state over the data axis; also returns the specs of gradients."""
    sharded = sharding.shard_over_data(shapes.params)
    gradient_specs = jax.tree.map(lambda leaf: leaf.sharding.spec, sharded)
    return shapes.replace(opt_state=sharding.shard_over_data(shapes.opt_state)), gradient_specs


def _one_example(batch: Mapping[str, np.ndarray]) -> Batch:
    """Builds a batch of one example of zeros, to initialise parameters; called while tracing."""
    zeros = {name: jnp.zeros((1, *rows.shape[1:]), rows.dtype) for name, rows in batch.items()}
    return {**zeros, "example_key": _keys(1)}


def _keys(batch_size: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), batch_size)


def make_seed_trainers(
    trainer: Trainer,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    batch: Mapping[str, np.ndarray],
    *,
    rules: Sequence[tuple],
) -> Callable[[int], Trainer]:
    """Builds a function from seed to trainer; all trainers share one compilation.

    Args:
      trainer: The trainer of any seed.
      optimizer: The trainer's optimizer.
      schedule: The trainer's schedule.
      batch: Any host batch; only its names, types and ranks matter.
      rules: The trainer's rules.
    """
    placed = jax.tree.map(lambda leaf: leaf.sharding, trainer.shapes)
    frozen_parts = jax.tree.map(lambda leaf: leaf.sharding, trainer.frozen)
    rows = sharding.batch_sharding(trainer.mesh)

    def create_state(seed: Array, frozen: Params) -> TrainState:
        state = unbox(create(trainer.pretrainer, optimizer, _one_example(batch), seed))
        return state.with_params(trainer.pretrainer.init_params(state.params, frozen))

    def train_step(
        state: TrainState, batch: Batch, seed: Array, frozen: Params
    ) -> tuple[TrainState, Metrics]:
        step = make_train_step(
            trainer.pretrainer, optimizer, schedule, seed=seed, **trainer.step_options
        )
        return step(state, batch, frozen)

    compiled_create = jax.jit(create_state, out_shardings=placed)
    compiled_step = jax.jit(
        sharding.on_mesh(train_step, trainer.mesh, rules),
        donate_argnums=0,
        in_shardings=(placed, rows, None, frozen_parts),
        out_shardings=(placed, None),
    )

    def make(seed: int) -> Trainer:
        arguments = (np.uint32(seed), trainer.frozen)
        return dataclasses.replace(
            trainer,
            create_state=BoundStep(compiled_create, arguments),
            train_step=BoundStep(compiled_step, arguments),
        )

    return make
