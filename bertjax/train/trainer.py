"""The compiled functions of a run, and where its state lies on the mesh."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from bertjax.interfaces import Pretrainer
from bertjax.train import flops, sharding
from bertjax.train.state import TrainState, create, unboxed
from bertjax.train.step import EvalStep, TrainStep, make_eval_step, make_train_step


@dataclasses.dataclass(frozen=True)
class Trainer:
    """What a run is made of once its shapes are known.

    Attributes:
      mesh: The devices.
      pretrainer: The encoder and its objectives.
      shapes: The state as shapes with shardings, which is what a checkpoint is restored onto.
      create_state: Makes the first state, on the mesh.
      train_step: Jitted; gives its state away.
      eval_step: Jitted.
    """

    mesh: Mesh
    pretrainer: Pretrainer
    shapes: PyTree
    create_state: Callable[[], TrainState]
    train_step: TrainStep
    eval_step: EvalStep

    def flops(self, batch: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> int:
        """FLOPs of the model for a step on a batch like this one, but of the shape (B, L)."""
        batch_size, length = shape
        rows = {
            name: jax.ShapeDtypeStruct((batch_size, *[length] * (values.ndim - 1)), values.dtype)
            for name, values in batch.items()
        }
        rows["example_key"] = jax.eval_shape(lambda: _keys(batch_size))
        variables = {"params": self.shapes.params}
        if self.shapes.carry is not None:
            variables["carry"] = self.shapes.carry

        def losses(variables, rows):
            return self.pretrainer.apply(variables, rows, train=False, mutable=["carry"])[0]

        return flops.training_flops(losses, variables, rows)


def make_trainer(
    pretrainer: Pretrainer,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    batch: Mapping[str, np.ndarray],
    *,
    mesh: Mesh,
    rules: Sequence[tuple],
    seed: int,
    microbatches: int,
    batch_size: int = 1,
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
      microbatches: Parts that a batch is worked on in, one after the other.
      batch_size: Examples of a global batch, for models that carry something from batch to batch.

    Raises:
      UserError: an array does not divide over the mesh.
    """
    template = {name: jnp.zeros((1, *rows.shape[1:]), rows.dtype) for name, rows in batch.items()}
    template["example_key"] = _keys(1)

    def boxed() -> TrainState:
        return create(pretrainer, optimizer, template, seed, batch_size)

    shapes = sharding.placed_shapes(jax.eval_shape(boxed), mesh, rules)
    placed = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    rows = sharding.batch_sharding(mesh)
    train_step = make_train_step(
        pretrainer, optimizer, schedule, seed=seed, microbatches=microbatches
    )
    return Trainer(
        mesh=mesh,
        pretrainer=pretrainer,
        shapes=shapes,
        create_state=jax.jit(lambda: unboxed(boxed()), out_shardings=placed),
        train_step=jax.jit(
            sharding.on_mesh(train_step, mesh, rules),
            donate_argnums=0,
            in_shardings=(placed, rows),
            out_shardings=(placed, None),
        ),
        eval_step=jax.jit(
            sharding.on_mesh(make_eval_step(pretrainer, seed=seed), mesh, rules),
            in_shardings=(placed.params, rows),
        ),
    )


def _keys(batch_size: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), batch_size)
