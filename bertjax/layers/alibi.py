"""ALiBi: attention with linear biases (Press et al. 2022, section 3).

A bias proportional to the distance of query and key is subtracted from their score, with another
slope in each head, in place of position embeddings. In an encoder it is symmetric, as in MosaicBERT
(Portes et al. 2023).
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class Alibi:
    """Biases of the scores of one sequence with itself.

    Attributes:
      num_heads: H.
    """

    num_heads: int

    @property
    def slopes(self) -> Float[np.ndarray, " H"]:
        """2 ** (-8 / H), 2 ** (-16 / H) ... 2 ** -8 where H is a power of two.

        For other H the released code takes the slopes of the power of two below H, and then every
        second slope, from the first on, of the power above.
        """
        below = 2 ** (self.num_heads.bit_length() - 1)
        between = _geometric(2 * below)[::2]
        return np.concatenate([_geometric(below), between[: self.num_heads - below]])

    def __call__(self, length: int) -> Float[Array, "H L L"]:
        """The biases of a sequence of `length` tokens."""
        positions = jnp.arange(length, dtype=jnp.float32)
        distances = jnp.abs(positions[:, None] - positions)
        return -jnp.asarray(self.slopes, jnp.float32)[:, None, None] * distances


def _geometric(count: int) -> Float[np.ndarray, " count"]:
    return 2.0 ** (-8 * np.arange(1, count + 1) / count)
