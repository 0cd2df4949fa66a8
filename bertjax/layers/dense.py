"""Linear layers with named kernel axes, activation functions, and matmul precision.

Axis names let one table of rules shard the kernels over a mesh. Parameters are always float32, as
are softmax, LayerNorm and losses; a precision sets the dtypes of matmul operands and results.

Activations have the names of published configs. Each keeps one residual and rematerialises the
rest; those of several operations are computed in float32, which costs no time and keeps digits.
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

Activation = Callable[[Float[Array, "..."]], Float[Array, "..."]]


def _elementwise(function: Activation) -> Activation:
    @functools.partial(jax.checkpoint, prevent_cse=False)
    @functools.wraps(function)
    def in_float32(x: Float[Array, "..."]) -> Float[Array, "..."]:
        return function(x.astype(jnp.float32)).astype(x.dtype)

    return in_float32


@_elementwise
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The normal distribution function of x, times x: exact (Hendrycks & Gimpel 2016, section 2).

    By the error function, as BERT has it; JAX's own takes the complement of it, which keeps more
    digits where the result is nearly zero, at twice the cost.
    """
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


@_elementwise
def gelu_new(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The same with a tanh in place of the error function, as in GPT-2 and ALBERT."""
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
"""Other names of the same functions in transformers, which a config keeps as it has them."""


ActivationName = Annotated[str, OneOf(ACTIVATIONS)]
HeadActivationName = Annotated[str, OneOf(("", *ACTIVATIONS))]
"""Of a prediction head; "" for the encoder's."""


def activation(name: str) -> Activation:
    """The function that `hidden_act` names in a published config.

    Raises:
      UserError: no such function.
    """
    if name not in ACTIVATIONS:
        raise UserError(f"no activation {name!r}: {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


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


Axes = tuple[str | None, ...]
Initializer = Callable[..., Array]


def truncated_normal(stddev: float) -> Initializer:
    """BERT's initialiser: a normal of this deviation, cut at two deviations.

    The deviation is that of the uncut normal, as in the published code; jax's own initialiser
    rescales the cut one.
    """

    def initialize(key: Array, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
        return stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

    return initialize


class Dense(nn.Module):
    """`x @ kernel + bias` over the last `contracted` axes of x.

    Attributes:
      features: Output axes, such as (heads, kv) for the queries of attention.
      axes: Logical names of the kernel's axes: the contracted ones, then those of `features`.
      contracted: How many trailing axes of the input are summed over.
      use_bias: Whether a bias of shape `features` is added.
      initializer_range: Standard deviation of the kernel's initialiser.
      initializer: What makes one of a deviation.
      bias_start: What every element of the bias is at first.
      precision: Types of operands and results.
    """

    features: tuple[int, ...]
    axes: Axes
    contracted: int = 1
    use_bias: bool = True
    initializer_range: float = 0.02
    initializer: Callable[[float], Initializer] = truncated_normal
    bias_start: float = 0.0
    precision: Precision = Precision()

    @nn.compact
    def __call__(
        self, x: Float[Array, "..."], after: Callable[[Array], Array] | None = None
    ) -> Float[Array, "..."]:
        """Maps x, or `after(x)`, which is computed again for the gradient: x alone is kept."""
        lead, summed = x.shape[: -self.contracted], x.shape[-self.contracted :]
        initializer = self.initializer(self.initializer_range)
        kernel = self.param(
            "kernel",
            nn.with_logical_partitioning(initializer, self.axes),
            (*summed, *self.features),
        )
        width = math.prod(summed)
        # Several contracted or output axes are folded into one: a plain matrix product is fastest.
        operands = x.reshape(-1, width), kernel.reshape(width, -1)
        if after is None:
            y = contract("ni,io->no", *operands, self.precision)
        else:
            y = _product_after(after, self.precision, *operands)
        y = y.reshape(*lead, *self.features)
        if self.use_bias:
            start = nn.with_logical_partitioning(
                nn.initializers.constant(self.bias_start), self.axes[self.contracted :]
            )
            y = y + self.param("bias", start, self.features).astype(y.dtype)
        return y


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product_after(
    after: Callable[[Array], Array],
    precision: Precision,
    x: Float[Array, "N I"],
    kernel: Float[Array, "I O"],
) -> Float[Array, "N O"]:
    return contract("ni,io->no", after(x), kernel, precision)


def _product_forward(after, precision, x, kernel):
    return _product_after(after, precision, x, kernel), (x, kernel)


def _product_backward(after, precision, remembered, gradient):
    # Not `jax.checkpoint`: a policy of `Stack` that keeps products would not see this one.
    _, pull_back = jax.vjp(lambda x, y: contract("ni,io->no", after(x), y, precision), *remembered)
    return pull_back(gradient)


_product_after.defvjp(_product_forward, _product_backward)
