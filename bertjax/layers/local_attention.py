"""Local attention in blocks, in time and memory O(L x window) (Beltagy et al. 2020, section 3.1).

The sequence is divided into blocks of half a window. The queries of a block attend to keys in its
own block and in the two adjacent ones, so that each block is a separate, small attention: the
blocks of a row become rows of a larger batch.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from bertjax.layers.masks import Mask


class Blocks(NamedTuple):
    """Queries in blocks of S tokens with their keys and values; R is the number of all blocks."""

    query: Float[Array, "R S H K"]
    key: Float[Array, "R T H K"]
    value: Float[Array, "R T H K"]
    mask: Bool[Array, "R 1 S T"]


def is_applicable(mask: Mask) -> bool:
    """Whether the mask allows attention in blocks, and these have fewer keys than the sequence."""
    if mask.window is None or mask.pairs is not None or mask.causal:
        return False
    length, width = mask.window
    return 3 * _block_size(width) < length


def split(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B L H K"],
    value: Float[Array, "B L H K"],
    mask: Mask,
) -> Blocks:
    """Divides an attention whose mask `is_applicable` into blocks; the last one may be padded."""
    length, width = mask.window
    size = _block_size(width)
    padding = -length % size
    key_mask = jnp.ones((1, length), bool) if mask.key_mask is None else mask.key_mask
    seen_BRT = _with_neighbours(key_mask, size, padding)[:, :, None]
    if mask.packed_segment_ids is not None:
        ids = mask.packed_segment_ids
        of_queries, of_keys = _blocks(ids, size, padding), _with_neighbours(ids, size, padding)
        same = of_queries[..., None] == of_keys[:, :, None]
        seen_BRT = seen_BRT & same & (of_keys != 0)[:, :, None]
    distances = jnp.arange(size)[:, None] + size - jnp.arange(3 * size)
    visible = seen_BRT & (abs(distances) <= width // 2)
    blocks = (len(query), -(-length // size), size, 3 * size)
    return Blocks(
        _fold(_blocks(query, size, padding)),
        _fold(_with_neighbours(key, size, padding)),
        _fold(_with_neighbours(value, size, padding)),
        _fold(jnp.broadcast_to(visible, blocks))[:, None],
    )


def merge(
    context: Float[Array, "R S H K"], length: int, batch_size: int
) -> Float[Array, "B L H K"]:
    """Joins the outputs of the blocks to rows of `length` tokens."""
    return context.reshape(batch_size, -1, *context.shape[2:])[:, :length]


def _block_size(width: int) -> int:
    return max(width // 2, 1)


def _blocks(x: Shaped[Array, "B L *d"], size: int, padding: int) -> Shaped[Array, "B N S *d"]:
    padded = jnp.pad(x, [(0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)])
    return padded.reshape(len(x), -1, size, *x.shape[2:])


def _with_neighbours(
    x: Shaped[Array, "B L *d"], size: int, padding: int
) -> Shaped[Array, "B N T *d"]:
    """Each block with the one before and the one after it; zeros beyond the ends."""
    blocks = jnp.pad(_blocks(x, size, padding), [(0, 0), (1, 1), *[(0, 0)] * (x.ndim - 1)])
    return jnp.concatenate([blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], axis=2)


def _fold(x: Shaped[Array, "B N *d"]) -> Shaped[Array, "R *d"]:
    return x.reshape(-1, *x.shape[2:])
