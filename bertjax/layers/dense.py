"""Linear maps whose kernels name their axes, so that one table of rules places them on a mesh."""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.layers.precision import Precision, contract

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
