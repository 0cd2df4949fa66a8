"""Cross entropy over a vocabulary for every position of a sequence, without all of its scores.

Scores exist for a few positions at a time, in the forward pass and in the backward pass, which
computes them again. Positions are taken along the length, so that examples stay on their devices.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from bertjax.layers import losses
from bertjax.layers.precision import Precision, contract


def cross_entropy_and_correct(
    hidden: Float[Array, "B L D"],
    table: Float[Array, "V D"],
    bias: Float[Array, " V"],
    labels: Int[Array, "B L"],
    weights: Float[Array, "B L"],
    *,
    positions: int,
    precision: Precision,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Weighted sums of the losses in nats and of the right answers.

    Args:
      hidden: What predicts.
      table: A vector for each label.
      bias: Added to the scores.
      labels: What is to be predicted.
      weights: 0 where nothing is.
      positions: Of each example, so many are worked on at a time.
      precision: Types of operands and results of the scores.
    """
    missing = -hidden.shape[1] % positions

    def in_pieces(x):
        x = jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2))
        return x.reshape(len(x), -1, positions, *x.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def piece(sums, given):
        hidden, labels, weights = given
        flat = hidden.reshape(-1, hidden.shape[-1])
        scores = contract("nd,vd->nv", flat, table, precision).astype(jnp.float32) + bias
        labels, weights = labels.reshape(-1), weights.reshape(-1)
        loss = losses.cross_entropy(scores, labels, weights)
        return (sums[0] + loss, sums[1] + losses.correct(scores, labels, weights)), None

    zeros = jnp.zeros(()), jnp.zeros(())
    return lax.scan(piece, zeros, tuple(map(in_pieces, (hidden, labels, weights))))[0]
