"""What every position of a sequence says of a vocabulary, without all of its scores.

Scores exist for a few positions at a time, in the forward pass and in the backward pass, which
computes them again. Positions are taken along the length, so that examples stay on their devices.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Score = Callable[..., Float[Array, "B P V"]]
"""(module, hidden [B P D], *shared) -> scores of the vocabulary, in float32."""


def predictions(
    module: nn.Module,
    score: Score,
    hidden: Float[Array, "B L D"],
    labels: Int[Array, "B L"],
    positions: int,
    *shared: Array,
) -> tuple[Float[Array, "B L"], Bool[Array, "B L"]]:
    """The log probability of each label in nats, and whether nothing is likelier.

    Args:
      module: Whose parameters `score` reads.
      score: From vectors to scores.
      hidden: What predicts.
      labels: What is to be predicted.
      positions: Of each example, so many are worked on at a time.
      shared: Arrays that `score` gets besides.
    """

    def piece(module: nn.Module, nothing: None, part: tuple, *shared: Array) -> tuple[None, tuple]:
        hidden, labels = part
        scores = score(module, hidden, *shared)
        chosen = jnp.take_along_axis(scores, labels[..., None], axis=-1)[..., 0]
        chances = chosen - jax.nn.logsumexp(scores, axis=-1)
        return nothing, (chances, scores.argmax(axis=-1) == labels)

    over_pieces = nn.scan(
        nn.remat(piece, prevent_cse=False),
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=(0, *(nn.broadcast,) * len(shared)),
    )
    parts = _parted(hidden, positions), _parted(labels, positions)
    _, made = over_pieces(module, None, parts, *shared)
    length = labels.shape[1]
    chances, hits = (jnp.concatenate(list(rows), axis=1)[:, :length] for rows in made)
    return chances, hits


def _parted(rows: Array, size: int) -> Array:
    """[B L ...] becomes [parts B size ...], filled up with zeros."""
    missing = -rows.shape[1] % size
    rows = jnp.pad(rows, ((0, 0), (0, missing)) + ((0, 0),) * (rows.ndim - 2))
    return rows.reshape(len(rows), -1, size, *rows.shape[2:]).swapaxes(0, 1)
