"""View parameters as matrices: classify their axes as stacked layers, inputs and outputs.

Optimizers such as Muon and Adafactor are defined for a matrix. A parameter here may hold those of
all layers, [N in out], and kernels of attention have an axis of heads: [N D H K] is one matrix
[D, H K] a layer, and [N H K D] one matrix [H K, D].
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.train.optimizer import leading_axes, parameter_name

ONE_INPUT_AXIS = (
    *("query", "key", "value", "gate", "relative", "position_key", "position_query"),
    "input",
)
"""Modules whose kernels map one axis to heads, or to the gates of an LSTM; other kernels map all
axes but the last to it."""
RECURRENT = "recurrent"
"""The parameter of an LSTM that maps its outputs to the gates of the next step."""


class Matrix(NamedTuple):
    """The axes of a parameter with a matrix per layer.

    Attributes:
      leading: Number of axes that count layers, which are the first.
      inputs: Number of axes of the input, which follow.
      shape: Shape of the array.
    """

    leading: int
    inputs: int
    shape: tuple[int, ...]

    @property
    def input_axes(self) -> tuple[int, ...]:
        """The axes of the input: the rows of the matrix."""
        return tuple(range(self.leading, self.leading + self.inputs))

    @property
    def output_axes(self) -> tuple[int, ...]:
        """The axes of the output: the columns of the matrix."""
        return tuple(range(self.leading + self.inputs, len(self.shape)))

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        rows = math.prod(self.shape[axis] for axis in self.input_axes)
        return rows, math.prod(self.shape[axis] for axis in self.output_axes)


def matrix_of(path: tuple, shape: tuple[int, ...]) -> Matrix | None:
    """The matrix that a parameter is in each layer, or None for a vector.

    Args:
      path: To the parameter, in the tree of all.
      shape: Shape of the parameter.
    """
    names = parameter_name(path)
    leading = leading_axes(names)
    rank = len(shape) - leading
    if rank < 2:
        return None
    one_input = len(names) > 1 and (names[-2] in ONE_INPUT_AXIS or names[-1] == RECURRENT)
    return Matrix(leading, 1 if one_input else rank - 1, shape)


def rms(path: tuple, array: Array) -> Float[Array, "..."]:
    """Root mean square of a parameter in each layer, with all axes."""
    axes = tuple(range(leading_axes(parameter_name(path)), array.ndim))
    return jnp.sqrt(jnp.mean(jnp.square(array), axis=axes, keepdims=True))
