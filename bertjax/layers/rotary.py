"""Rotary position embeddings (RoPE; Su et al. 2021, section 3.2.2).

Queries and keys are rotated by angles proportional to their positions, so that a score depends on
the positions of its query and key only through their difference.
"""

import dataclasses

import jax.numpy as jnp
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
