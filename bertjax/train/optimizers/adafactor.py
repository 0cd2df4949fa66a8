"""Adafactor (Shazeer & Stern 2018): second moments of a matrix as a row and a column.

optax factors the two largest axes of an array, which are not a matrix where layers are stacked and
kernels have an axis of heads; here every matrix of every layer is factored.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree

from bertjax.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from bertjax.train import matrices, sharding
from bertjax.train.matrices import Matrix
from bertjax.train.optimizer import DECAY_BELOW_ONE, add_decayed_weights

SQUARE_EPSILON = 1e-30
"""Added to squared gradients (algorithm 4, epsilon 1)."""
MIN_PARAMETER_SCALE = 1e-3
"""Lower bound of the RMS of a parameter (algorithm 4, epsilon 2)."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """No momentum; the defaults are those of the paper (section 9).

    Attributes:
      weight_decay: Decoupled from the gradient.
      scale_by_parameter: Whether a step is relative to the RMS of the parameter (section 8); the
        learning rate is about 1e-2 then.
      clipping_threshold: Upper bound of the RMS of a parameter's update (section 6).
      decay_exponent: The decay of second moments in step t is 1 - t ** -decay_exponent.
      min_size_to_factor: Rows and columns from which on a matrix is factored.
    """

    weight_decay: NonNegativeFloat = 0.0
    scale_by_parameter: bool = True
    clipping_threshold: PositiveFloat = 1.0
    decay_exponent: PositiveFloat = 0.8
    min_size_to_factor: PositiveInt = 128

    relations = (DECAY_BELOW_ONE,)

    def transforms(self) -> tuple[optax.GradientTransformation, ...]:
        """The steps of the chain from clipped gradient to direction."""
        scale = _scale_by_parameter_rms() if self.scale_by_parameter else optax.identity()
        return (
            scale_by_factored_rms(self.decay_exponent, self.min_size_to_factor),
            _clip_by_rms(self.clipping_threshold),
            scale,
            add_decayed_weights(self.weight_decay),
        )


class FactoredState(NamedTuple):
    """Running means of squared gradients.

    Attributes:
      count: Updates done.
      moments: For each parameter a dict: `rows` and `columns` of its matrices, or `full`.
    """

    count: Int[Array, ""]
    moments: PyTree


def scale_by_factored_rms(
    decay_exponent: float, min_size_to_factor: int
) -> optax.GradientTransformation:
    """Divides by the root of factored second moments (algorithm 4, with section 7.2's decay).

    The second moment at row i and column j is rows[i] * columns[j] / mean(rows): the rank-1 matrix
    with the same marginals (section 3).
    """

    def matrix_to_factor(path: tuple, shape: tuple[int, ...]) -> Matrix | None:
        matrix = matrices.matrix_of(path, shape)
        return matrix if matrix and min(matrix.sizes) >= min_size_to_factor else None

    def init(params: PyTree) -> FactoredState:
        def zeros(path: tuple, parameter: Any) -> dict[str, Any]:
            shape = sharding.unbox(parameter).shape
            if (matrix := matrix_to_factor(path, shape)) is None:
                return {"full": jax.tree.map(jnp.zeros_like, parameter)}
            return {
                "rows": sharding.zeros_without(parameter, matrix.output_axes),
                "columns": sharding.zeros_without(parameter, matrix.input_axes),
            }

        moments = sharding.map_boxed(zeros, params)
        return FactoredState(jnp.zeros((), jnp.int32), moments)

    def update(gradient, state, params=None):
        count = optax.safe_increment(state.count)
        decay = 1 - count.astype(jnp.float32) ** -decay_exponent

        def mean(old: Array, squares: Array, axes: tuple[int, ...] = ()) -> Array:
            return decay * old + (1 - decay) * jnp.mean(squares, axis=axes)

        def accumulate(path: tuple, gradient: Array, old: dict[str, Array]) -> dict[str, Array]:
            squares = jnp.square(gradient) + SQUARE_EPSILON
            if (matrix := matrix_to_factor(path, gradient.shape)) is None:
                return {"full": mean(old["full"], squares)}
            return {
                "rows": mean(old["rows"], squares, matrix.output_axes),
                "columns": mean(old["columns"], squares, matrix.input_axes),
            }

        def scale(path: tuple, gradient: Array, moments: dict[str, Array]) -> Array:
            if (matrix := matrix_to_factor(path, gradient.shape)) is None:
                return gradient * jax.lax.rsqrt(moments["full"])
            rows = jnp.expand_dims(moments["rows"], matrix.output_axes)
            columns = jnp.expand_dims(moments["columns"], matrix.input_axes)
            relative = rows / jnp.mean(rows, axis=matrix.input_axes, keepdims=True)
            return gradient * jax.lax.rsqrt(relative) * jax.lax.rsqrt(columns)

        moments = jax.tree_util.tree_map_with_path(accumulate, gradient, state.moments)
        scaled = jax.tree_util.tree_map_with_path(scale, gradient, moments)
        return scaled, FactoredState(count, moments)

    return optax.GradientTransformation(init, update)


def _clip_by_rms(threshold: float) -> optax.GradientTransformation:
    """Update clipping: the RMS of an update in each layer is at most the threshold (section 6)."""

    def clip(path: tuple, update: Array) -> Array:
        return update / jnp.maximum(1.0, matrices.rms(path, update) / threshold)

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(clip, updates))


def _scale_by_parameter_rms() -> optax.GradientTransformation:
    """Multiplies by the RMS of the parameter in each layer, at least 1e-3 (section 8)."""

    def scale(path: tuple, update: Array, parameter: Array) -> Array:
        return update * jnp.maximum(matrices.rms(path, parameter), MIN_PARAMETER_SCALE)

    return optax.stateless(
        lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates, params)
    )
