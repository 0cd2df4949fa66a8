"""Splash attention, JAX's Pallas kernel for TPUs.

Sharding, segment ids and block sizes are shared with the other Pallas kernel of attention
(`layers/dropout_attention.py`).
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.layers.masks import Mask

LANES = 128
"""Width of a TPU's vector registers; block sizes are multiples of it."""

LARGEST_BLOCK = 512

_MAX_FUSED_BLOCKS = 4
"""Blocks of keys that the fused backward kernel takes as one, and up to which it is used for local
attention.

By roofline, the traffic of its gradients of queries costs more than scores computed twice from 3
(v6e), 7 (v5e) or 9 (v5p) blocks of 512 keys on, for a window of up to 512.
"""


def splash(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B M H K"],
    value: Float[Array, "B M H K"],
    mask: Mask,
    *,
    interpret: bool = False,
) -> Float[Array, "B L H K"]:
    """`attend` without dropout, by Pallas: each device works on its own rows and heads.

    A query that sees no key has an output of zero and no gradient.

    Args:
      query: Q.
      key: K.
      value: V.
      mask: A mask without `pairs`.
      interpret: Whether the kernel is interpreted, slowly, on a device that is not a TPU.
    """
    attend = functools.partial(
        _on_a_device, causal=bool(mask.causal), window=mask.window, interpret=interpret
    )
    context = on_a_mesh(attend)(query, key, value, *segments(mask, query, key))
    # The kernel's backward pass is wrong by a factor of M for queries that see no key.
    sees_any = mask.array().any(axis=(1, 3))[:, :, None, None]
    return jnp.where(sees_any, context, 0)


def on_a_mesh(attend: Callable[..., Array], of_heads: int = 0) -> Callable[..., Array]:
    """Runs a kernel on the rows and heads of each device, because XLA does not partition kernels.

    Args:
      attend: Function of queries, keys, values, both kinds of segments, and further arrays.
      of_heads: Number of the further arrays, all [B H N].
    """
    if jax.sharding.get_abstract_mesh().empty:
        return attend
    heads = nn.logical_to_mesh_axes(("batch", None, "heads", None))
    rows = nn.logical_to_mesh_axes(("batch", None))
    further = nn.logical_to_mesh_axes(("batch", "heads", None))
    specs = (heads, heads, heads, rows, rows, *[further] * of_heads)
    return jax.shard_map(attend, in_specs=specs, out_specs=heads, check_vma=False)


def segments(
    mask: Mask, query: Float[Array, "B L H K"], key: Float[Array, "B M H K"]
) -> tuple[Int[Array, "B L"], Int[Array, "B M"]]:
    """The mask as segment ids: a query sees the keys of its segment; masked keys have 0."""
    batch, queries, keys = *query.shape[:2], key.shape[1]
    query_segments, key_segments = jnp.ones((2, batch, 1), jnp.int32)
    if mask.packed_segment_ids is not None:
        query_segments, key_segments = (
            jnp.where(mask.packed_segment_ids == 0, -1, mask.packed_segment_ids),
            mask.packed_segment_ids,
        )
    if mask.key_mask is not None:
        key_segments = jnp.where(mask.key_mask, key_segments, 0)
    return jnp.broadcast_to(query_segments, (batch, queries)), jnp.broadcast_to(
        key_segments, (batch, keys)
    )


def _on_a_device(
    query: Float[Array, "b L h K"],
    key: Float[Array, "b M h K"],
    value: Float[Array, "b M h K"],
    query_segments: Int[Array, "b L"],
    key_segments: Int[Array, "b M"],
    *,
    causal: bool,
    window: tuple[int, int] | None,
    interpret: bool,
) -> Float[Array, "b L h K"]:
    from jax.experimental.pallas.ops.tpu import splash_attention

    length, heads, width = query.shape[1:]
    shape = length, key.shape[1]
    mask = splash_attention.CausalMask(shape) if causal else splash_attention.FullMask(shape)
    if window is not None:
        around = (window[1] // 2, window[1] // 2)
        local = splash_attention.LocalMask(shape, window_size=around, offset=0)
        mask = mask & local if causal else local
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask] * heads),
        block_sizes=_block_sizes(splash_attention.BlockSizes, *shape, local=window is not None),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )

    def attend_example(query, key, value, query_segments, key_segments):
        return kernel(query, key, value, splash_attention.SegmentIds(query_segments, key_segments))

    scaled = query * jnp.asarray(width**-0.5, query.dtype)
    heads_first = (jnp.swapaxes(x, 1, 2) for x in (scaled, key, value))
    return jnp.swapaxes(jax.vmap(attend_example)(*heads_first, query_segments, key_segments), 1, 2)


def _block_sizes(kind: type, queries: int, keys: int, *, local: bool):
    """Blocks of the forward and the backward pass.

    A fused backward kernel computes the scores once for all three gradients, but writes a gradient
    of all queries for each block of keys, also where a local mask lets it skip the scores. So it
    takes several blocks of keys as one, and for local attention in long sequences there are two
    kernels.
    """
    query_block, key_block = block_size(queries), block_size(keys)
    blocks = keys // key_block
    forward = {"block_q": query_block, "block_kv": key_block}
    backward = {"block_q_dkv": query_block, "block_kv_dkv": key_block}
    if local and blocks > _MAX_FUSED_BLOCKS:
        return kind(**forward, **backward, block_q_dq=query_block, block_kv_dq=key_block)
    if not local:
        fused = max(n for n in range(1, _MAX_FUSED_BLOCKS + 1) if blocks % n == 0)
        backward |= {"block_kv_dkv": fused * key_block, "block_kv_dkv_compute": key_block}
    return kind(**forward, **backward, use_fused_bwd_kernel=True)


def block_size(length: int, largest: int = LARGEST_BLOCK) -> int:
    """The largest multiple of `LANES` up to a size that divides a length."""
    blocks = range(LANES, largest + 1, LANES)
    return max(block for block in blocks if length % block == 0)
