"""Keys and values of what a decoder has read, so that a new token is read alone.

Tokens lie in columns. All rows of a batch take a column at the same time, and those that have no
token for it leave it empty: so texts of different lengths end in one column, and a new column is
written in one piece, in place, for all layers at once.
"""

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.layers.masks import Mask, visible_matrix


@flax.struct.dataclass
class Cache:
    """What was read.

    Attributes:
      keys: Of every layer and column.
      values: Likewise.
      there: Which columns hold a token of a row.
      end: How many columns are taken, by whatever row.
    """

    keys: Float[Array, "N B T H K"]
    values: Float[Array, "N B T H K"]
    there: Bool[Array, "B T"]
    end: Int[Array, ""]

    def positions(self, there: Bool[Array, "B L"]) -> Int[Array, "B L"]:
        """The positions of tokens that follow, counted in each row by its own tokens."""
        before = self.there.sum(axis=1, keepdims=True)
        return before + positions(there)

    def mask(self, mask: Mask) -> Mask:
        """What tokens that follow see: all that is here, and of each other what `mask` shows."""
        among = mask.array()[:, 0]
        here = jnp.broadcast_to(self.there[:, None], (*among.shape[:2], self.there.shape[1]))
        return visible_matrix(jnp.concatenate([here, among], axis=-1))

    def extended(
        self,
        keys: Float[Array, "N B L H K"],
        values: Float[Array, "N B L H K"],
        there: Bool[Array, "B L"],
    ) -> "Cache":
        """The cache with further columns, for which there must be room."""
        put = jax.lax.dynamic_update_slice_in_dim
        return Cache(
            put(self.keys, keys, self.end, axis=2),
            put(self.values, values, self.end, axis=2),
            put(self.there, there, self.end, axis=1),
            self.end + there.shape[1],
        )

    def take(self, rows: Int[Array, " S"]) -> "Cache":
        """The cache of other rows: of some, of some twice, in another order."""
        return Cache(
            jnp.take(self.keys, rows, axis=1),
            jnp.take(self.values, rows, axis=1),
            jnp.take(self.there, rows, axis=0),
            self.end,
        )


def begun(
    keys: Float[Array, "N B L H K"],
    values: Float[Array, "N B L H K"],
    there: Bool[Array, "B L"],
    room: int,
) -> Cache:
    """A cache of some columns, with room for more."""
    behind = (0, room)
    around = ((0, 0), (0, 0), behind, (0, 0), (0, 0))
    end = jnp.int32(there.shape[1])
    wide = jnp.pad(there, ((0, 0), behind))
    return Cache(jnp.pad(keys, around), jnp.pad(values, around), wide, end)


def positions(there: Bool[Array, "B L"]) -> Int[Array, "B L"]:
    """The position of every token among those of its row that are there; else 0."""
    return jnp.where(there, jnp.cumsum(there, axis=1) - 1, 0)
