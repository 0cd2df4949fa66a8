"""Summed losses with weights, in float32: what can be added up over microbatches."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def cross_entropy(
    logits: Float[Array, "*lead C"], labels: Int[Array, "*lead"], weights: Float[Array, "*lead"]
) -> Float[Array, ""]:
    """Weighted sum of -log softmax(logits)[label], in nats."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.sum(weights * (jax.nn.logsumexp(logits, axis=-1) - chosen))


def sigmoid_cross_entropy(
    logits: Float[Array, "*lead"], labels: Bool[Array, "*lead"], weights: Float[Array, "*lead"]
) -> Float[Array, ""]:
    """Weighted sum of -log of the probability given to a yes or no, in nats."""
    logits = logits.astype(jnp.float32)
    return jnp.sum(weights * jax.nn.softplus(jnp.where(labels, -logits, logits)))


def divergence(
    logits: Float[Array, "*lead C"],
    wanted: Float[Array, "*lead C"],
    weights: Float[Array, "*lead"],
    temperature: float,
) -> Float[Array, ""]:
    """Weighted sum of KL(softmax(wanted / T) || softmax(logits / T)) T^2, in nats.

    The square keeps the gradient's size whatever the temperature (Hinton et al. 2015, section 2).
    """
    logits = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
    wanted = jax.nn.log_softmax(wanted.astype(jnp.float32) / temperature)
    divergences = jnp.sum(jnp.exp(wanted) * (wanted - logits), axis=-1)
    return temperature**2 * jnp.sum(weights * divergences)


def correct(
    logits: Float[Array, "*lead C"], labels: Int[Array, "*lead"], weights: Float[Array, "*lead"]
) -> Float[Array, ""]:
    """Weighted count of the examples whose highest score is the label's."""
    return jnp.sum(weights * (logits.argmax(axis=-1) == labels))
