"""All that a training run remembers from one step to the next."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from bertjax.interfaces import Batch, Params, Pretrainer


@flax.struct.dataclass
class TrainState:
    """The position in the data is the step number; nothing else needs to be remembered.

    Attributes:
      step: Optimizer steps done.
      params: Plain nested dict.
      opt_state: The optimizer's.
      carry: What a recurrent model hands from batch to batch, else None.
      skipped: Updates left out so far because the loss or the gradient was not finite.
      skipped_in_a_row: How many of them came last, one after the other.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    carry: Any
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


def create(
    pretrainer: Pretrainer, optimizer: optax.GradientTransformation, batch: Batch, seed: int
) -> TrainState:
    """The state before the first step, with parameters still boxed in their axis names.

    `batch` gives shapes alone.
    """
    variables = pretrainer.init(jax.random.key(seed), batch, train=False)
    params = variables["params"]
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, optimizer.init(params), None, zero, zero)


def frozen_of(pretrainer: Pretrainer, batch: Batch) -> Params:
    """Parameters that no step changes, boxed: their shapes count, their values are draws."""
    variables = pretrainer.init(jax.random.key(0), batch, train=False)
    return variables.get("frozen", {})


def unboxed(state: TrainState) -> TrainState:
    """The same state with plain arrays, without the names of their axes."""
    return nn.meta.unbox(state)
