"""Which types matrix products read and which types they give, and the one product that obeys.

Parameters are always float32, and so are softmax, LayerNorm and losses.
"""

import dataclasses
import functools
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest


@dataclasses.dataclass(frozen=True)
class Precision:
    """Types of computation.

    Attributes:
      operands: What matrix products read.
      activations: What they give, and what flows between layers.
    """

    operands: str = "float32"
    activations: str = "float32"


NAMED = {
    "float32": Precision("float32", "float32"),
    "bfloat16": Precision("bfloat16", "bfloat16"),
    # CPUs multiply bfloat16 matrices quickly but have no bfloat16 for anything else.
    "bfloat16_operands": Precision("bfloat16", "float32"),
}


PrecisionName = Annotated[str, OneOf(NAMED)]


def named(name: str) -> Precision:
    """The precision that a config calls `name`.

    Raises:
      UserError: there is none.
    """
    if name not in NAMED:
        raise UserError(f"no precision {name!r}: {nearest(name, NAMED)}")
    return NAMED[name]


def contract(
    subscripts: str, x: Float[Array, "..."], y: Float[Array, "..."], precision: Precision
) -> Float[Array, "..."]:
    """`einsum(subscripts, x, y)` in the types of `precision`.

    Every index must appear in two of the three terms, so that the gradients are contractions too.
    """
    if precision.operands == precision.activations:
        operands = jnp.dtype(precision.operands)
        return jnp.einsum(subscripts, x.astype(operands), y.astype(operands))
    return _mixed(subscripts, precision, x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _mixed(subscripts: str, precision: Precision, x: Array, y: Array) -> Array:
    operands = jnp.dtype(precision.operands)
    return jnp.einsum(
        subscripts,
        x.astype(operands),
        y.astype(operands),
        preferred_element_type=precision.activations,
    )


def _mixed_forward(subscripts, precision, x, y):
    operands = jnp.dtype(precision.operands)
    x, y = x.astype(operands), y.astype(operands)
    return _mixed(subscripts, precision, x, y), (x, y)


def _mixed_backward(subscripts, precision, operands, gradient):
    """Without this rule the gradient's products would be promoted to float32 operands."""
    x, y = operands
    inputs, output = subscripts.split("->")
    left, right = inputs.split(",")
    return (
        _mixed(f"{output},{right}->{left}", precision, gradient, y),
        _mixed(f"{left},{output}->{right}", precision, x, gradient),
    )


_mixed.defvjp(_mixed_forward, _mixed_backward)
