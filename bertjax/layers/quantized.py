"""Matmuls of linear layers with 8-bit operands (SwitchBack: Wortsman et al. 2023, section 2.2).

The output and the gradient of the input have operands in 8 bits, each row of the first and each
column of the second with a scale of its own, from its largest magnitude in this step. The gradient
of the kernel sums over all tokens, is most sensitive to rounding, and is computed in the operands
of the precision.

By their specifications, accelerators multiply 8-bit matrices twice as fast as bfloat16.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

INT8, FLOAT8 = "int8", "float8"
_DTYPES = {INT8: (jnp.int8, jnp.int8), FLOAT8: (jnp.float8_e4m3fn, jnp.float8_e5m2)}
"""Types of operands, and of the gradient of the output, which has a larger range of magnitudes
(Micikevicius et al. 2022, section 3)."""


def quantize(
    x: Float[Array, "rows columns"], dtype: DTypeLike, *, axis: int
) -> tuple[Array, Float[Array, "..."]]:
    """Scales and rounds a matrix to 8 bits.

    Args:
      x: Matrix.
      dtype: int8, or a float8.
      axis: Axis of the values that share a scale.

    Returns:
      The matrix in 8 bits, and the float32 scales by which it has to be multiplied, whose size
      along `axis` is 1.
    """
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    # -128 is not used, so that the range is symmetric.
    largest = float(jnp.iinfo(dtype).max if is_integer else jnp.finfo(dtype).max)
    x = x.astype(jnp.float32)
    magnitude = jnp.abs(x).max(axis=axis, keepdims=True)
    scale = jnp.where(magnitude > 0, magnitude, 1) / largest
    scaled = jnp.clip(x / scale, -largest, largest)
    return (jnp.round(scaled) if is_integer else scaled).astype(dtype), scale


def _scaled_matmul(
    x: Float[Array, "N I"], x_dtype: DTypeLike, y: Float[Array, "I O"], y_dtype: DTypeLike
) -> Float[Array, "N O"]:
    x_8bit, x_scale = quantize(x, x_dtype, axis=1)
    y_8bit, y_scale = quantize(y, y_dtype, axis=0)
    exact = jnp.int32 if jnp.issubdtype(x_dtype, jnp.integer) else jnp.float32
    return lax.dot(x_8bit, y_8bit, preferred_element_type=exact) * x_scale * y_scale


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def matmul(
    kind: str,
    operands: str,
    activations: str,
    x: Float[Array, "N I"],
    kernel: Float[Array, "I O"],
) -> Float[Array, "N O"]:
    """Multiplies a matrix of tokens by a kernel in 8 bits.

    Args:
      kind: INT8 or FLOAT8.
      operands: Dtype of the operands of the kernel's gradient.
      activations: Dtype of the result.
      x: Inputs.
      kernel: Weights.
    """
    dtype, _ = _DTYPES[kind]
    return _scaled_matmul(x, dtype, kernel, dtype).astype(activations)


def _forward(kind, operands, activations, x, kernel):
    return matmul(kind, operands, activations, x, kernel), (x, kernel)


def _backward(kind, operands, activations, residuals, gradient):
    x, kernel = residuals
    dtype, gradient_dtype = _DTYPES[kind]
    of_x = _scaled_matmul(gradient, gradient_dtype, kernel.T, dtype)
    of_kernel = lax.dot(
        x.astype(operands).T, gradient.astype(operands), preferred_element_type=kernel.dtype
    )
    return of_x.astype(x.dtype), of_kernel


matmul.defvjp(_forward, _backward)
