"""LayerNorm, computed in float32 whatever flows through."""

import flax.linen as nn
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

        y = x.astype(jnp.float32)
        centered = y - y.mean(axis=-1, keepdims=True)
        variance = jnp.square(centered).mean(axis=-1, keepdims=True)
        y = centered * lax.rsqrt(variance + self.epsilon)
        y = y * parameter("scale", nn.initializers.ones) + parameter("bias", nn.initializers.zeros)
        return y.astype(x.dtype)
