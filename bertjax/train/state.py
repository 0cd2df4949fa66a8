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


@flax.struct.dataclass
class TrainState:
    """The position in the data is the step number; nothing else needs to be restored.

    Attributes:
      step: Optimizer steps done.
      params: Plain nested dict.
      opt_state: The optimizer's.
      carry: What a recurrent model hands from batch to batch, else None: a tree of arrays whose
        first axis is the batch, all zero before the first step.
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
    pretrainer: Pretrainer,
    optimizer: optax.GradientTransformation,
    batch: Batch,
    seed: int,
    batch_size: int = 1,
) -> TrainState:
    """The state before the first step, with all arrays still boxed in their axis names.

    Args:
      pretrainer: The encoder and its objectives.
      optimizer: From gradient to direction.
      batch: One example; its shapes count alone.
      seed: Of the parameters.
      batch_size: Examples of a global batch, which a carry has a row for each of.
    """
    variables = pretrainer.init(jax.random.key(seed), batch, train=False)
    params = variables["params"]
    carry = None
    if "carry" in variables:
        carry = jax.tree.map(
            lambda leaf: jnp.zeros((batch_size, *leaf.shape[1:]), leaf.dtype), variables["carry"]
        )
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, optimizer.init(params), carry, zero, zero)


def frozen_of(pretrainer: Pretrainer, batch: Batch) -> Params:
    """Parameters that no step changes, boxed: their shapes count, their values are draws."""
    variables = pretrainer.init(jax.random.key(0), batch, train=False)
    return variables.get("frozen", {})


def unboxed(state: TrainState) -> TrainState:
    """The same state with plain arrays, without the names of their axes."""
    return nn.meta.unbox(state)
