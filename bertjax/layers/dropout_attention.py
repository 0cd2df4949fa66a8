"""Attention with dropout of the weights in a Pallas kernel for TPUs, forward and backward.

A program of the kernel has a block of queries and all keys of a head, so that the softmax needs no
second pass over the keys. The weights [L M] and their random bits stay in the memory of the core.
The bits are those of `Dropout.sample_mask`: a program computes the Threefry blocks of its queries
from their counts (`layers/dropout.py`).

The backward pass computes the weights again, from the inputs alone: the softmax of a block is
complete, so that it needs neither the sums of the forward pass nor its output. The mask is a
residual, in one bit per weight, half of which are used: Threefry's rounds are most of the
operations of the forward pass.

Scores and weights are transposed, [M L]: the four parts of a row's random bits are then joined
along the second-minor axis, in multiples of 8 keys, and the sums of the softmax are elementwise
additions of registers.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas
from jax.experimental.pallas import tpu
from jaxtyping import Array, Bool, Float, Int, UInt32

from bertjax.layers.dropout import DropoutKeys, threefry2x32
from bertjax.layers.masks import Mask
from bertjax.layers.splash_attention import LANES, LARGEST_BLOCK, block_size, on_a_mesh, segments

_MAX_SCORES = 2**18
"""Most scores of a program, in a float32 array of one of the 16 megabytes that kernels may use."""

_PARTS = 4
"""Elements of a row that share a block of random bits."""
_BITS = 16
"""Keys per word of the bit mask of kept weights; M / 16 is a multiple of 8 rows of registers."""
_MASKED = float(np.finfo(np.float32).min)


class Options(NamedTuple):
    """Static arguments of the kernel.

    Attributes:
      block: Number of queries of a program.
      threshold: Weights whose 16 random bits are below are zeroed.
      scale: The factor of the other weights.
      causal: Whether query i sees keys j <= i only.
      window: w if query i sees keys j with |i - j| <= w // 2 only; None for all.
      interpret: Whether the kernel is interpreted, slowly, on a device that is not a TPU.
    """

    block: int
    threshold: int
    scale: float
    causal: bool = False
    window: int | None = None
    interpret: bool = False


def dropout_attention(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B M H K"],
    value: Float[Array, "B M H K"],
    mask: Mask,
    *,
    dropout: DropoutKeys,
    interpret: bool = False,
) -> Float[Array, "B L H K"]:
    """`attend` with dropout, by Pallas: each device works on its own rows and heads.

    The dropout mask is that of xla. A query that sees no key has an output of zero and no gradient.

    Args:
      query: Q.
      key: K.
      value: V.
      mask: A mask without `pairs`.
      dropout: Dropout of the weights.
      interpret: Whether the kernel is interpreted, slowly, on a device that is not a TPU.
    """
    batch, queries, heads, _ = query.shape
    keys = key.shape[1]
    options = Options(
        block=block_size(queries, max(LANES, min(LARGEST_BLOCK, _MAX_SCORES // keys))),
        threshold=dropout.threshold,
        scale=dropout.scale,
        causal=bool(mask.causal),
        window=mask.window[1] if mask.window else None,
        interpret=interpret,
    )
    attend = functools.partial(_attend_on_a_device, options)
    counters = dropout.counters((batch, heads, queries, keys))
    return on_a_mesh(attend, 1)(query, key, value, *segments(mask, query, key), counters)


def _attend_on_a_device(
    options: Options,
    query: Float[Array, "b L h K"],
    key: Float[Array, "b M h K"],
    value: Float[Array, "b M h K"],
    query_segments: Int[Array, "b L"],
    key_segments: Int[Array, "b M"],
    counters: UInt32[Array, "b h 3"],
) -> Float[Array, "b L h K"]:
    """Softmax of the scores with dropout, times the values, of the rows and heads of a device.

    A query that sees no key has an output of zero and no gradient.

    Args:
      options: Mask and dropout.
      query: Q.
      key: K.
      value: V.
      query_segments: Queries see keys of the same segment.
      key_segments: Segments of the keys.
      counters: Of `DropoutKeys.counters`.
    """
    heads_first = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    context = _attention(
        options,
        counters[:, :, None],
        query_segments[:, None],
        key_segments[..., None],
        *heads_first,
    )
    return jnp.swapaxes(context, 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options, *arrays):
    return _forward(options, *arrays)[0]


def _forward(options, counters, *arrays):
    query, key = arrays[2:4]
    blocks = _blocks(options, query, key)
    kept = (*query.shape[:2], key.shape[2] // _BITS, query.shape[2])
    context, kept = _call(_forward_kernel, options, query)(
        in_specs=(blocks.counters, *blocks.operands),
        out_specs=(blocks.query, blocks.kept),
        out_shape=_shapes(query, jax.ShapeDtypeStruct(kept, jnp.int32)),
    )(counters, *arrays)
    return context, (kept, *arrays)


def _backward(options, residuals, gradient):
    _, _, _, query, key, value = residuals
    blocks = _blocks(options, query, key)
    gradients = _call(_backward_kernel, options, query)(
        in_specs=(blocks.kept, *blocks.operands, blocks.query),
        out_specs=(blocks.query, blocks.key, blocks.key),
        out_shape=_shapes(query, key, value),
        scratch_shapes=[tpu.VMEM(x.shape[2:], jnp.float32) for x in (key, value)],
    )(*residuals, gradient)
    return None, None, None, *gradients


_attention.defvjp(_forward, _backward)


class _Blocks(NamedTuple):
    """The part of each array in a program; programs are rows, heads and blocks of queries."""

    counters: pallas.BlockSpec
    query_segments: pallas.BlockSpec
    key_segments: pallas.BlockSpec
    query: pallas.BlockSpec
    key: pallas.BlockSpec
    kept: pallas.BlockSpec

    @property
    def operands(self) -> tuple[pallas.BlockSpec, ...]:
        """Those of segments, queries, keys and values."""
        return self.query_segments, self.key_segments, self.query, self.key, self.key


def _blocks(options: Options, query: Array, key: Array) -> _Blocks:
    (keys, width), block = key.shape[2:], options.block
    # Parts that do not depend on the block of queries are read, or written, once per head.
    return _Blocks(
        counters=pallas.BlockSpec(
            (None, None, 1, 3), lambda b, h, i: (b, h, 0, 0), memory_space=tpu.SMEM
        ),
        query_segments=pallas.BlockSpec((None, 1, block), lambda b, h, i: (b, 0, i)),
        key_segments=pallas.BlockSpec((None, keys, 1), lambda b, h, i: (b, 0, 0)),
        query=pallas.BlockSpec((None, None, block, width), lambda b, h, i: (b, h, i, 0)),
        key=pallas.BlockSpec((None, None, keys, width), lambda b, h, i: (b, h, 0, 0)),
        kept=pallas.BlockSpec((None, None, keys // _BITS, block), lambda b, h, i: (b, h, 0, i)),
    )


def _call(kernel: Callable, options: Options, query: Array) -> Callable:
    """`pallas_call` with the arguments that both passes share."""
    batch, heads, queries, _ = query.shape
    return functools.partial(
        pallas.pallas_call,
        functools.partial(kernel, options),
        grid=(batch, heads, queries // options.block),
        compiler_params=tpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=options.interpret,
        name=f"attention_kernel{kernel.__name__.removesuffix('_kernel')}",
    )


def _shapes(*arrays: Array | jax.ShapeDtypeStruct) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]


def _forward_kernel(
    options, counters, query_segments, key_segments, query, key, value, context, kept
) -> None:
    first = pallas.program_id(2) * options.block
    weights_ML = _weights(options, first, query_segments, key_segments, query, key)
    bits_ML = _bits(first, counters, weights_ML.shape)
    kept[...] = _pack(bits_ML >= options.threshold)
    dropped_ML = jnp.where(bits_ML >= options.threshold, weights_ML, 0.0).astype(value.dtype)
    context[...] = (_dot(dropped_ML, value[...], (0, 0)) * options.scale).astype(context.dtype)


def _backward_kernel(
    options,
    kept,
    query_segments,
    key_segments,
    query,
    key,
    value,
    gradient,
    to_query,
    to_key,
    to_value,
    key_sum,
    value_sum,
) -> None:
    block, num_blocks = pallas.program_id(2), pallas.num_programs(2)

    @pallas.when(block == 0)
    def _():
        key_sum[...] = jnp.zeros_like(key_sum)
        value_sum[...] = jnp.zeros_like(value_sum)

    first = block * options.block
    weights_ML = _weights(options, first, query_segments, key_segments, query, key)
    dropped_ML = jnp.where(_unpack(kept[...]), weights_ML, 0.0)
    value_sum[...] += _dot(dropped_ML.astype(value.dtype), gradient[...], (1, 0))
    # As in `masked_softmax_attention`: zero where the weights are, so also where all are masked.
    weighted_ML = dropped_ML * _dot(value[...], gradient[...], (1, 1))
    to_scores_ML = weighted_ML - weights_ML * weighted_ML.sum(axis=0, keepdims=True)
    to_scores_ML = to_scores_ML.astype(query.dtype)
    scale = _score_scale(query) * options.scale
    to_query[...] = (_dot(to_scores_ML, key[...], (0, 0)) * scale).astype(to_query.dtype)
    key_sum[...] += _dot(to_scores_ML, query[...], (1, 0))

    @pallas.when(block == num_blocks - 1)
    def _():
        to_key[...] = (key_sum[...] * scale).astype(to_key.dtype)
        to_value[...] = (value_sum[...] * options.scale).astype(to_value.dtype)


def _weights(options, first, query_segments, key_segments, query, key) -> Float[Array, "M L"]:
    """Softmax over the visible keys; zero for all others."""
    scores_ML = _dot(key[...], query[...], (1, 1))
    visible = key_segments[...] == query_segments[...]
    keys = lax.broadcasted_iota(jnp.int32, scores_ML.shape, 0)
    queries = lax.broadcasted_iota(jnp.int32, scores_ML.shape, 1) + first
    if options.causal:
        visible &= keys <= queries
    if options.window is not None:
        visible &= jnp.abs(queries - keys) <= options.window // 2
    scores_ML = jnp.where(visible, scores_ML, _MASKED)
    maxima_1L = scores_ML.max(axis=0, keepdims=True)
    # exp(scale (x - max)), which is zero for masked keys next to a visible one.
    base_2 = _score_scale(query) * math.log2(math.e)
    exponentials_ML = jnp.exp2((scores_ML - maxima_1L) * base_2)
    sums_1L = exponentials_ML.sum(axis=0, keepdims=True)
    return exponentials_ML * jnp.where(maxima_1L == _MASKED, 0.0, 1 / sums_1L)


def _score_scale(query) -> float:
    return 1 / math.sqrt(query.shape[-1])


def _bits(first, counters, shape: tuple[int, int]) -> Int[Array, "M L"]:
    """Random bits; key m has part m // (M / 4) of block m % (M / 4) of its query."""
    blocks = (shape[0] // _PARTS, shape[1])
    queries = lax.broadcasted_iota(jnp.int32, blocks, 1) + first
    indices = queries * blocks[0] + lax.broadcasted_iota(jnp.int32, blocks, 0)
    counts = counters[0, 2] + indices.astype(jnp.uint32)
    words = counters[0, 0], counters[0, 1]
    one, other = threefry2x32(words, jnp.zeros_like(counts), counts)
    halves = one & 0xFFFF, one >> 16, other & 0xFFFF, other >> 16
    return jnp.concatenate(halves, axis=0).astype(jnp.int32)


def _pack(kept: Bool[Array, "M L"]) -> Int[Array, "W L"]:
    parts = jnp.split(kept, _BITS, axis=0)
    return sum(jnp.where(part, 1 << bit, 0) for bit, part in enumerate(parts))


def _unpack(kept: Int[Array, "W L"]) -> Bool[Array, "M L"]:
    return jnp.concatenate([kept & (1 << bit) for bit in range(_BITS)], axis=0) != 0


def _dot(x: Array, y: Array, contracted: tuple[int, int]) -> Float[Array, "I J"]:
    axes = ((contracted[:1], contracted[1:]), ((), ()))
    return lax.dot_general(x, y, axes, preferred_element_type=jnp.float32)
