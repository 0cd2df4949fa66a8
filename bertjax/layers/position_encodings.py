"""Position encodings in attention: rotary embeddings (RoPE) and linear biases (ALiBi).

RoPE (Su et al. 2021, section 3.2.2) rotates queries and keys by angles proportional to their
positions, so that a score depends on the positions of its query and key only through their
difference.

ALiBi (Press et al. 2022, section 3) subtracts from the score of a query and a key a bias
proportional to their distance, with another slope in each head. In an encoder it is symmetric, as
in MosaicBERT (Portes et al. 2023).
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotation of the K features of a head in K / 2 planes.

    Attributes:
      theta: Base of the geometric sequence of frequencies: plane i turns by theta ** (-2 i / K)
        radians per position.
      interleaved: Whether plane i holds features 2 i and 2 i + 1, as in the paper; otherwise it
        holds features i and i + K / 2, as in GPT-NeoX and in Hugging Face's models.
    """

    theta: float = 10_000.0
    interleaved: bool = False

    def __post_init__(self):
        if not self.theta > 0:
            raise ValueError(f"theta of rotary embeddings: got {self.theta}, expected a number > 0")

    def __call__(
        self, x: Float[Array, "B L H K"], positions: Int[Array, "#B L"] | None = None
    ) -> Float[Array, "B L H K"]:
        """Rotates queries or keys, in float32.

        Args:
          x: Queries or keys.
          positions: Position of every token; None for 0, 1, 2 ...

        Raises:
          ValueError: K is odd.
        """
        length, width = x.shape[1], x.shape[-1]
        if width % 2:
            raise ValueError(f"rotary embeddings: got heads of width {width}, expected an even one")
        if positions is None:
            positions = jnp.arange(length)[None]
        frequencies = self.theta ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
        angles = (positions[..., None].astype(jnp.float32) * frequencies)[:, :, None]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        wide = x.astype(jnp.float32)
        if self.interleaved:
            first, second = wide[..., 0::2], wide[..., 1::2]
        else:
            first, second = jnp.split(wide, 2, axis=-1)
        rotated = first * cos - second * sin, second * cos + first * sin
        if self.interleaved:
            return jnp.stack(rotated, axis=-1).reshape(x.shape).astype(x.dtype)
        return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


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
