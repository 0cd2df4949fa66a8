"""Summed losses with weights, in float32: what can be added up over microbatches."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def cross_entropy(
    logits: Float[Array, "*lead C"], labels: Int[Array, "*lead"], weights: Float[Array, "*lead"]
) -> Float[Array, ""]:
    """Weighted sum of -log softmax(logits)[label], in nats."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.sum(weights * (jax.nn.logsumexp(logits, axis=-1) - chosen))


def correct(
    logits: Float[Array, "*lead C"], labels: Int[Array, "*lead"], weights: Float[Array, "*lead"]
) -> Float[Array, ""]:
    """Weighted count of the examples whose highest score is the label's."""
    return jnp.sum(weights * (logits.argmax(axis=-1) == labels))
