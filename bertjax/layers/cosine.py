"""Cosine similarity of vectors."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_MIN_NORM = 1e-12
"""Shorter vectors are not scaled to unit length, as in `torch.nn.functional.normalize`."""


def unit_vectors(vectors: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
    """Scales vectors to unit length; a vector of zeros stays one."""
    squared = jnp.sum(vectors**2, axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squared, _MIN_NORM**2))


def cosines(first: Float[Array, "n D"], second: Float[Array, "m D"]) -> Float[Array, "n m"]:
    """Computes the cosine of every pair of rows."""
    # The default precision of accelerators is too low for cosines divided by a temperature.
    return jnp.matmul(
        unit_vectors(first), unit_vectors(second).T, precision=jax.lax.Precision.HIGHEST
    )
