"""LayerNorm, computed in float32 whatever flows through."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


class LayerNorm(nn.Module):
    """Normalises the last axis to mean 0 and variance 1, then scales and shifts (Ba et al. 2016).

    Attributes:
      epsilon: Added to the variance; BERT publishes 1e-12.
    """

    epsilon: float = 1e-12

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        def parameter(name, initializer):
            axes = nn.with_logical_partitioning(initializer, ("norm",))
            return self.param(name, axes, (x.shape[-1],))

        scale = parameter("scale", nn.initializers.ones)
        bias = parameter("bias", nn.initializers.zeros)
        return _normalised(x, scale, bias, self.epsilon)


# For the gradient, what flows in is kept alone: float32 would take twice the room, and thrice.
@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=3)
def _normalised(
    x: Float[Array, "*lead D"], scale: Float[Array, " D"], bias: Float[Array, " D"], epsilon: float
) -> Float[Array, "*lead D"]:
    y = x.astype(jnp.float32)
    centered = y - y.mean(axis=-1, keepdims=True)
    variance = jnp.square(centered).mean(axis=-1, keepdims=True)
    y = centered * lax.rsqrt(variance + epsilon)
    return (y * scale + bias).astype(x.dtype)
