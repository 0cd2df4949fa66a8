"""Position signals: sinusoids, as such or as the start of learned positions."""

from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest
from bertjax.layers.dense import Initializer, truncated_normal

_LONGEST_WAVE = 10_000.0


def sinusoids(length: int, width: int) -> Float[np.ndarray, "L D"]:
    """Sines, then cosines, of frequencies from 1 down to 1/10,000 (Vaswani et al. 2017, 3.5).

    The signal of a position k further on is a rotation of the signal here, the same everywhere.
    """
    return sinusoids_at(np.arange(length), width)


def sinusoids_at(positions: Int[np.ndarray, " L"], width: int) -> Float[np.ndarray, "L D"]:
    """The signals of any positions, negative ones too, or of distances between them."""
    frequencies = _LONGEST_WAVE ** (-np.arange(0, width, 2) / width)
    angles = positions[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width].astype(np.float32)


def sinusoidal(stddev: float) -> Initializer:
    """Starts a table of learned positions as sinusoids of an amplitude of twice `stddev`.

    A short run then need not find out first which positions are neighbours. The signal is as strong
    as words of deviation `stddev`, and half as strong again: experiments/LOG.md, 2026-11-21.
    """

    def initialize(key: Array, shape: tuple[int, int], dtype=jnp.float32) -> Array:
        return jnp.asarray(2 * stddev * sinusoids(*shape), dtype)

    return initialize


INITIALIZERS: dict[str, Callable[[float], Initializer]] = {
    "normal": truncated_normal,
    "sinusoidal": sinusoidal,
}

PositionInitializer = Annotated[str, OneOf(INITIALIZERS)]


def position_initializer(name: str, stddev: float) -> Initializer:
    """How a table of learned positions starts: "normal" as published, or "sinusoidal".

    Raises:
      UserError: there is no such start.
    """
    if name not in INITIALIZERS:
        raise UserError(f"position_initializer={name!r}: {nearest(name, INITIALIZERS)}")
    return INITIALIZERS[name](stddev)
