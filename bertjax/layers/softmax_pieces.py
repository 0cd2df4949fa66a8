"""What every position of a sequence says of a vocabulary, without all of its scores.

Scores exist for a few positions at a time, in the forward pass and in the backward pass, which
computes them again. Positions are taken along the length, so that examples stay on their devices.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Score = Callable[..., Float[Array, "B P V"]]
"""(module, hidden [B P D], *shared) -> scores of the vocabulary, in float32."""

_PARTS = 8
"""As few of the positions meet the vocabulary at once as with masked tokens, which are 15%."""


class Said(NamedTuple):
    """What is said of each label.

    Attributes:
      chances: Its log probability, in nats.
      hits: Whether nothing is likelier.
      mean: The mean log probability of the whole vocabulary, which smoothed labels are made of.
    """

    chances: Float[Array, "B L"]
    hits: Bool[Array, "B L"]
    mean: Float[Array, "B L"]


def predictions(
    module: nn.Module,
    score: Score,
    hidden: Float[Array, "B L D"],
    labels: Int[Array, "B L"],
    positions: int,
    *shared: Array,
) -> Said:
    """What the vectors say of the labels.

    Args:
      module: Whose parameters `score` reads.
      score: From vectors to scores.
      hidden: What predicts.
      labels: What is to be predicted.
      positions: Of each example, so many are worked on at a time; 0 for an eighth, rounded up.
      shared: Arrays that `score` gets besides.
    """

    def piece(module: nn.Module, nothing: None, part: tuple, *shared: Array) -> tuple[None, tuple]:
        hidden, labels = part
        scores = score(module, hidden, *shared)
        chosen = jnp.take_along_axis(scores, labels[..., None], axis=-1)[..., 0]
        total = jax.nn.logsumexp(scores, axis=-1)
        hits = scores.argmax(axis=-1) == labels
        return nothing, Said(chosen - total, hits, scores.mean(axis=-1) - total)

    over_pieces = nn.scan(
        nn.remat(piece, prevent_cse=False),
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=(0, *(nn.broadcast,) * len(shared)),
    )
    length = labels.shape[1]
    size = positions or math.ceil(length / _PARTS)
    parts = _parted(hidden, size), _parted(labels, size)
    _, made = over_pieces(module, None, parts, *shared)
    return Said(*(jnp.concatenate(list(rows), axis=1)[:, :length] for rows in made))


def _parted(rows: Array, size: int) -> Array:
    """[B L ...] becomes [parts B size ...], filled up with zeros."""
    missing = -rows.shape[1] % size
    rows = jnp.pad(rows, ((0, 0), (0, missing)) + ((0, 0),) * (rows.ndim - 2))
    return rows.reshape(len(rows), -1, size, *rows.shape[2:]).swapaxes(0, 1)
