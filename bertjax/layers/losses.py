"""Weighted sums of losses in float32, which add up over microbatches, and chunked softmax.

`chunked_softmax` scores every position of a sequence against the vocabulary for a few positions at
a time, in the forward pass and, rematerialised, in the backward pass. Chunks are taken along the
length, so that examples stay on their devices.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def cross_entropy(
    logits: Float[Array, "*lead C"],
    labels: Int[Array, "*lead"],
    weights: Float[Array, "*lead"],
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Float[Array, ""]:
    """Weighted sum of -log softmax(logits)[label], in nats.

    Args:
      logits: Logits of all classes.
      labels: The classes.
      weights: Weight of each label.
      label_smoothing: Share of each label that is spread over all classes (Szegedy et al. 2016,
        section 7).
      z_loss: Factor of log(Z)^2, which keeps logits near a normalizer Z of 1 (Chowdhery et al.
        2022, section 5).
    """
    logits = logits.astype(jnp.float32)
    chosen = _take_labels(logits, labels)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    if label_smoothing:
        chosen = (1 - label_smoothing) * chosen + label_smoothing * logits.mean(axis=-1)
    losses = log_normalizer - chosen
    if z_loss:
        losses = losses + z_loss * jnp.square(log_normalizer)
    return jnp.sum(weights * losses)


def _take_labels(
    logits: Float[Array, "*lead C"], labels: Int[Array, "*lead"]
) -> Float[Array, "*lead"]:
    """The logit of each label.

    On accelerators by comparisons, which are fused with other reductions and gradients of the
    logits: for a gather, with a scatter as its gradient, XLA writes all logits and their gradients
    to memory in float32 there. On CPUs, where each reduction reads the logits again, by a gather.
    """
    return jax.lax.platform_dependent(logits, labels, cpu=_gather, default=_compare)


def _gather(logits: Float[Array, "*lead C"], labels: Int[Array, "*lead"]) -> Float[Array, "*lead"]:
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def _compare(logits: Float[Array, "*lead C"], labels: Int[Array, "*lead"]) -> Float[Array, "*lead"]:
    is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
    return jnp.sum(jnp.where(is_label, logits, 0), axis=-1)


def sigmoid_cross_entropy(
    logits: Float[Array, "*lead"], labels: Bool[Array, "*lead"], weights: Float[Array, "*lead"]
) -> Float[Array, ""]:
    """Weighted sum of the binary cross entropy, in nats."""
    logits = logits.astype(jnp.float32)
    return jnp.sum(weights * jax.nn.softplus(jnp.where(labels, -logits, logits)))


def divergence(
    logits: Float[Array, "*lead C"],
    teacher_logits: Float[Array, "*lead C"],
    weights: Float[Array, "*lead"],
    temperature: float,
) -> Float[Array, ""]:
    """Weighted sum of KL(softmax(teacher / T) || softmax(logits / T)) T^2, in nats.

    The square makes the size of the gradient independent of the temperature (Hinton et al. 2015,
    section 2).
    """
    logits = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
    teacher_logits = jax.nn.log_softmax(teacher_logits.astype(jnp.float32) / temperature)
    divergences = jnp.sum(jnp.exp(teacher_logits) * (teacher_logits - logits), axis=-1)
    return temperature**2 * jnp.sum(weights * divergences)


def count_correct(
    logits: Float[Array, "*lead C"], labels: Int[Array, "*lead"], weights: Float[Array, "*lead"]
) -> Float[Array, ""]:
    """Weighted number of examples whose label has the highest score."""
    return jnp.sum(weights * _is_argmax(logits, labels))


def _is_argmax(
    logits: Float[Array, "*lead C"], labels: Int[Array, "*lead"]
) -> Bool[Array, "*lead"]:
    """`logits.argmax(axis=-1) == labels`, without the slow reduction of (maximum, index)."""
    chosen = _take_labels(logits, labels)[..., None]
    is_later = jnp.arange(logits.shape[-1]) >= labels[..., None]
    return jnp.all((chosen > logits) | ((chosen == logits) & is_later), axis=-1)


Score = Callable[..., Float[Array, "B P V"]]
"""(module, hidden [B P D], *shared) -> logits over the vocabulary, in float32."""

_NUM_CHUNKS = 8
"""Default number of chunks: a chunk is about as large as the 15% of masked tokens."""


class LabelScores(NamedTuple):
    """Log probability of the label at each position.

    Attributes:
      log_probs: Log probability of the label, in nats.
      hits: Whether the label has the highest score.
      mean: Mean log probability over the vocabulary, for label smoothing.
      log_normalizer: Logarithm of the sum of exponentials, for the z-loss.
    """

    log_probs: Float[Array, "B L"]
    hits: Bool[Array, "B L"]
    mean: Float[Array, "B L"]
    log_normalizer: Float[Array, "B L"]

    def cross_entropy(
        self, weights: Float[Array, "B L"], *, label_smoothing: float = 0.0, z_loss: float = 0.0
    ) -> Float[Array, ""]:
        """Weighted cross entropy; see the function `cross_entropy`."""
        log_probs = self.log_probs
        if label_smoothing:
            log_probs = (1 - label_smoothing) * log_probs + label_smoothing * self.mean
        if z_loss:
            log_probs = log_probs - z_loss * jnp.square(self.log_normalizer)
        return -jnp.sum(weights * log_probs)


def chunked_softmax(
    module: nn.Module,
    score: Score,
    hidden: Float[Array, "B L D"],
    labels: Int[Array, "B L"],
    positions: int,
    *shared: Array,
) -> LabelScores:
    """Computes log probabilities of labels in chunks of positions, never [B L V] at once.

    Args:
      module: Module with the parameters that `score` uses.
      score: Maps vectors to logits.
      hidden: Input of `score`.
      labels: The labels.
      positions: Positions of each example per chunk; 0 for an eighth of them, rounded up.
      shared: Further arguments of `score`.
    """

    def score_chunk(
        module: nn.Module, carry: None, chunk: tuple, *shared: Array
    ) -> tuple[None, tuple]:
        hidden, labels = chunk
        scores = score(module, hidden, *shared)
        chosen = _take_labels(scores, labels)
        total = jax.nn.logsumexp(scores, axis=-1)
        hits = _is_argmax(scores, labels)
        return carry, LabelScores(chosen - total, hits, scores.mean(axis=-1) - total, total)

    scan = nn.scan(
        nn.remat(score_chunk, prevent_cse=False),
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=(0, *(nn.broadcast,) * len(shared)),
    )
    length = labels.shape[1]
    size = positions or math.ceil(length / _NUM_CHUNKS)
    inputs = _split_chunks(hidden, size), _split_chunks(labels, size)
    _, chunks = scan(module, None, inputs, *shared)
    return LabelScores(*(jnp.concatenate(list(rows), axis=1)[:, :length] for rows in chunks))


def _split_chunks(rows: Array, size: int) -> Array:
    """Reshapes [B L ...] to [parts B size ...], padded with zeros."""
    missing = -rows.shape[1] % size
    rows = jnp.pad(rows, ((0, 0), (0, missing)) + ((0, 0),) * (rows.ndim - 2))
    return rows.reshape(len(rows), -1, size, *rows.shape[2:]).swapaxes(0, 1)
