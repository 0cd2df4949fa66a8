"""A sum of all layers of an encoder, weighted for a task (Peters et al. 2018, equation 1)."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


class ScalarMix(nn.Module):
    """gamma times the sum of layers with softmax-normalised weights, all alike at first.

    Attributes:
      layer_norm: Whether the vectors of each layer are normalised first. They are one by one
        (published: with the mean and variance of the whole batch), so that no token of another
        example counts.
    """

    layer_norm: bool = False

    @nn.compact
    def __call__(self, layers: Sequence[Float[Array, "B L D"]]) -> Float[Array, "B L D"]:
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, (None,))
        weights = jax.nn.softmax(self.param("weights", zeros, (len(layers),)))
        gamma = self.param("gamma", nn.initializers.ones, ())
        stacked = jnp.stack([layer.astype(jnp.float32) for layer in layers])
        if self.layer_norm:
            centered = stacked - stacked.mean(axis=-1, keepdims=True)
            stacked = centered * lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + 1e-12)
        return gamma * jnp.einsum("n,nbld->bld", weights, stacked)
