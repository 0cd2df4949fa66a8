"""Linear layers with named kernel axes, activation functions, and matmul precision.

Axis names let one table of rules shard the kernels over a mesh. Parameters are always float32, as
are softmax, LayerNorm and losses; a precision sets the dtypes of matmul operands and results.

Activations have the names of published configs. Each keeps one residual and rematerialises the
rest; those of several operations are computed in float32, for precision at no cost in time.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest
from bertjax.layers import quantized

Activation = Callable[[Float[Array, "..."]], Float[Array, "..."]]


def _elementwise(function: Activation) -> Activation:
    @functools.partial(jax.checkpoint, prevent_cse=False)
    @functools.wraps(function)
    def in_float32(x: Float[Array, "..."]) -> Float[Array, "..."]:
        return function(x.astype(jnp.float32)).astype(x.dtype)

    return in_float32


@_elementwise
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Exact GELU, x times the normal distribution function of x (Hendrycks & Gimpel 2016, 2).

    Uses the error function, as BERT does; `jax.nn.gelu` uses its complement, which keeps more
    digits where the result is nearly zero, at twice the cost.
    """
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


@_elementwise
def gelu_new(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """GELU approximated by tanh, as in GPT-2 and ALBERT."""
    return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_new": gelu_new,
    "relu": jax.nn.relu,
    "silu": _elementwise(jax.nn.silu),
    "tanh": jax.numpy.tanh,
}
ACTIVATIONS |= {
    "gelu_python": gelu,
    "gelu_pytorch_tanh": gelu_new,
    "gelu_python_tanh": gelu_new,
    "gelu_accurate": gelu_new,
    "gelu_fast": gelu_new,
    "swish": ACTIVATIONS["silu"],
}
"""Aliases of the same functions in transformers."""


ActivationName = Annotated[str, OneOf(ACTIVATIONS)]
HeadActivationName = Annotated[str, OneOf(("", *ACTIVATIONS))]
"""Activation of a prediction head; "" for the encoder's."""


def activation(name: str) -> Activation:
    """Returns the activation function of a name, as in `hidden_act` of published configs.

    Raises:
      UserError: the name is unknown.
    """
    if name not in ACTIVATIONS:
        raise UserError(f"no activation {name!r}: {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


@dataclasses.dataclass(frozen=True)
class Precision:
    """Dtypes of computation.

    Attributes:
      operands: Dtype of matmul operands.
      activations: Dtype of matmul results and of the activations between layers.
      quantized: 8-bit operands of linear layers (`layers/quantized.py`), "int8" or "float8"; "" for
        none. Other matmuls, those of attention and of the vocabulary, have `operands`.
    """

    operands: str = "float32"
    activations: str = "float32"
    quantized: str = ""


PRECISIONS = {
    "float32": Precision("float32", "float32"),
    "bfloat16": Precision("bfloat16", "bfloat16"),
    # CPUs multiply bfloat16 matrices quickly but have no bfloat16 for anything else.
    "bfloat16_operands": Precision("bfloat16", "float32"),
    quantized.INT8: Precision("bfloat16", "bfloat16", quantized.INT8),
    quantized.FLOAT8: Precision("bfloat16", "bfloat16", quantized.FLOAT8),
}


_TILE = 16, 64
"""Rows and columns of a tile that is transposed at a time."""

PrecisionName = Annotated[str, OneOf(PRECISIONS)]


def get_precision(name: str) -> Precision:
    """Returns the precision of a name in configs.

    Raises:
      UserError: the name is unknown.
    """
    if name not in PRECISIONS:
        raise UserError(f"no precision {name!r}: {nearest(name, PRECISIONS)}")
    return PRECISIONS[name]


def contract(
    subscripts: str, x: Float[Array, "..."], y: Float[Array, "..."], precision: Precision
) -> Float[Array, "..."]:
    """Einsum in the dtypes of a precision.

    Every index must appear in two of the three terms, so that the gradients are contractions too.
    """
    if precision.operands == precision.activations:
        operands = jnp.dtype(precision.operands)
        return jnp.einsum(subscripts, x.astype(operands), y.astype(operands))
    return _mixed_einsum(subscripts, precision, x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _mixed_einsum(subscripts: str, precision: Precision, x: Array, y: Array) -> Array:
    operands = jnp.dtype(precision.operands)
    x, y = x.astype(operands), y.astype(operands)
    if x.ndim > 2:
        # XLA would fold a transposition into the matmul, which then has no bfloat16 kernel on CPUs.
        x, y = jax.lax.optimization_barrier((x, y))
    return jnp.einsum(subscripts, x, y, preferred_element_type=precision.activations)


def _mixed_forward(subscripts, precision, x, y):
    operands = jnp.dtype(precision.operands)
    x, y = x.astype(operands), y.astype(operands)
    return _mixed_einsum(subscripts, precision, x, y), (x, y)


def _mixed_backward(subscripts, precision, operands, gradient):
    """Gradient of `_mixed_einsum`; by default its matmuls would be promoted to float32 operands."""
    x, y = operands
    inputs, output = subscripts.split("->")
    left, right = inputs.split(",")
    to_x = _mixed_einsum(f"{output},{right}->{left}", precision, gradient, y)
    if x.ndim > 2:
        return to_x, _mixed_einsum(f"{output},{left}->{right}", precision, gradient, x)
    rows, columns = (x, gradient) if right[0] in left else (gradient, x)
    if rows.size <= columns.size + y.size:
        return to_x, _sum_over_rows(precision, rows, columns)
    return to_x, _transpose_in_tiles(_sum_over_rows(precision, columns, rows))


_mixed_einsum.defvjp(_mixed_forward, _mixed_backward)


def _sum_over_rows(
    precision: Precision, x: Float[Array, "N I"], y: Float[Array, "N O"]
) -> Float[Array, "I O"]:
    """Matmul that sums over the rows of both operands.

    XLA would compute it in float32 on CPUs, at a fraction of the speed, and would compute an
    activation of x within the loop that transposes it.
    """
    x_IN = _transpose_in_tiles(jax.lax.optimization_barrier(x.astype(precision.operands)))
    return _mixed_einsum("in,no->io", precision, x_IN, y)


def _transpose_in_tiles(x: Float[Array, "N I"]) -> Float[Array, "I N"]:
    """Transposes by tiles, which XLA does not fold into the matmul that reads the result."""
    n, i = math.gcd(x.shape[0], _TILE[0]), math.gcd(x.shape[1], _TILE[1])
    tiles = x.reshape(x.shape[0] // n, n, x.shape[1] // i, i).transpose(2, 0, 3, 1)
    return tiles.reshape(x.shape[1] // i, -1, i, n).swapaxes(1, 2).reshape(x.shape[::-1])


@jax.custom_vjp
def add_bias(
    x: Float[Array, "*lead_and_shape"], bias: Float[Array, "*shape"]
) -> Float[Array, "*lead_and_shape"]:
    """Adds a bias to large rows: logits of a vocabulary, or embeddings of all positions.

    On CPUs XLA's sum over 640 rows of 30,522 or 32 of 128 x 256, the gradient of a bias, takes 30
    times as long as the same sum as a matmul (`experiments/LOG.md`).
    """
    return x + bias


def _add_bias_backward(bias, gradient):
    rows = gradient.reshape(-1, *bias.shape)
    to_bias = jax.lax.platform_dependent(
        rows,
        cpu=lambda y: (jnp.ones(len(y), y.dtype) @ y.reshape(len(y), -1)).reshape(y.shape[1:]),
        default=lambda y: y.sum(axis=0),
    )
    return gradient, to_bias


add_bias.defvjp(lambda x, bias: (x + bias, bias), _add_bias_backward)


Axes = tuple[str | None, ...]
Initializer = Callable[..., Array]


@functools.cache
def truncated_normal(stddev: float) -> Initializer:
    """BERT's initialiser: a normal distribution truncated at two standard deviations.

    `stddev` is that of the distribution before truncation, as in the published code; the
    initialiser of jax rescales the truncated one.
    """

    def initialize(key: Array, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
        return stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

    return initialize


class Dense(nn.Module):
    """Linear layer, `x @ kernel + bias` over the last `contracted` axes of x.

    Attributes:
      features: Sizes of the output axes, such as (H, K) for the queries of attention.
      axes: Logical names of the kernel's axes: the contracted ones, then those of `features`.
      contracted: Number of trailing axes of the input that are summed over.
      use_bias: Whether a bias of shape `features` is added.
      initializer_range: Standard deviation of the kernel's initialiser.
      initializer: Maps a standard deviation to an initialiser.
      initial_bias: Initial value of the bias.
      precision: Types of operands and results.
    """

    features: tuple[int, ...]
    axes: Axes
    contracted: int = 1
    use_bias: bool = True
    initializer_range: float = 0.02
    initializer: Callable[[float], Initializer] = truncated_normal
    initial_bias: float = 0.0
    precision: Precision = Precision()

    @nn.compact
    def __call__(
        self, x: Float[Array, "..."], input_activation: Callable[[Array], Array] | None = None
    ) -> Float[Array, "..."]:
        """Maps x, or `input_activation(x)`, which is rematerialised: the only residual is x."""
        lead, summed = x.shape[: -self.contracted], x.shape[-self.contracted :]
        initializer = self.initializer(self.initializer_range)
        kernel = self.param(
            "kernel",
            nn.with_logical_partitioning(initializer, self.axes),
            (*summed, *self.features),
        )
        width = math.prod(summed)
        # Several contracted or output axes are folded into one: a plain matmul is fastest.
        operands = x.reshape(-1, width), kernel.reshape(width, -1)
        if input_activation is None:
            y = _matmul(*operands, self.precision)
        else:
            y = _activate_and_contract(input_activation, self.precision, *operands)
        y = y.reshape(*lead, *self.features)
        if self.use_bias:
            initializer = nn.with_logical_partitioning(
                nn.initializers.constant(self.initial_bias), self.axes[self.contracted :]
            )
            y = y + self.param("bias", initializer, self.features).astype(y.dtype)
        return y


def _matmul(x: Float[Array, "N I"], kernel: Float[Array, "I O"], precision: Precision) -> Array:
    if precision.quantized:
        return quantized.matmul(
            precision.quantized, precision.operands, precision.activations, x, kernel
        )
    return contract("ni,io->no", x, kernel, precision)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _activate_and_contract(
    activation: Callable[[Array], Array],
    precision: Precision,
    x: Float[Array, "N I"],
    kernel: Float[Array, "I O"],
) -> Float[Array, "N O"]:
    return _matmul(activation(x), kernel, precision)


def _activate_forward(activation, precision, x, kernel):
    return _activate_and_contract(activation, precision, x, kernel), (x, kernel)


def _activate_backward(activation, precision, residuals, gradient):
    # Not `jax.checkpoint`, inside which a remat policy of `Stack` could not save the matmul.
    _, pull_back = jax.vjp(lambda x, y: _matmul(activation(x), y, precision), *residuals)
    return pull_back(gradient)


_activate_and_contract.defvjp(_activate_forward, _activate_backward)
