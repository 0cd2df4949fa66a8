"""The state of a training run between two steps."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from bertjax.interfaces import Batch, Params
from bertjax.pretrainer import Pretrainer
from bertjax.train.averaging import Average, averaging_of, restart


@flax.struct.dataclass
class TrainState:
    """Everything that a step updates; the position in the data follows from the step number.

    Attributes:
      step: Optimizer steps done.
      params: Parameters, as a nested dict.
      opt_state: State of the optimizer.
      carry: State that a recurrent model passes from batch to batch, or None: a tree of arrays
        whose first axis is the batch, all zero before the first step.
      skipped: Number of updates skipped because the loss or the gradient was not finite.
      skipped_in_a_row: Number of consecutive skipped updates up to now.
      average: Average of the parameters over steps, or None.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    carry: Any
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    average: Average = None

    @property
    def evaluation_params(self) -> Params:
        """The weights to evaluate: the average if there is one, else the parameters."""
        return self.params if self.average is None else self.average["params"]

    def with_params(self, params: Params) -> "TrainState":
        """The state of a run that starts from other parameters."""
        return self.replace(params=params, average=restart(self.average, params))


def create(
    pretrainer: Pretrainer,
    optimizer: optax.GradientTransformation,
    batch: Batch,
    seed: int,
    batch_size: int = 1,
) -> TrainState:
    """Initialises the state; arrays are boxed with the names of their logical axes.

    Args:
      pretrainer: The encoder and its objectives.
      optimizer: Maps gradients to directions.
      batch: One example, of which only the shapes matter.
      seed: Seed of the parameters.
      batch_size: Number of examples of a global batch: rows of a carry.
    """
    return create_with_frozen(pretrainer, optimizer, batch, seed, batch_size)[0]


def create_with_frozen(
    pretrainer: Pretrainer,
    optimizer: optax.GradientTransformation,
    batch: Batch,
    seed: int,
    batch_size: int = 1,
) -> tuple[TrainState, Params]:
    """Initialises the state, as `create`, and the frozen parameters, used for their shapes."""
    variables = pretrainer.init(jax.random.key(seed), batch, train=False)
    params = variables["params"]
    carry = None
    if "carry" in variables:
        carry = jax.tree.map(
            lambda leaf: jnp.zeros((batch_size, *leaf.shape[1:]), leaf.dtype), variables["carry"]
        )
    zero = jnp.zeros((), jnp.int32)
    average = averaging_of(optimizer).init(params)
    state = TrainState(zero, params, optimizer.init(params), carry, zero, zero, average)
    return state, variables.get("frozen", {})


def unbox(state: TrainState) -> TrainState:
    """Removes the names of axes from a state, which leaves plain arrays."""
    return nn.meta.unbox(state)
