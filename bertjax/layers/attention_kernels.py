"""Fused attention kernels, which never materialise the weights [B H L M] (Dao et al. 2022).

splash  JAX's kernel for TPUs, in Pallas; on CPUs it is interpreted, which is for tests
cudnn   NVIDIA's kernel for GPUs
xla     no fused kernel: the matmuls and the softmax of `layers/attention.py`

`choose` selects one from the platform and the properties of an attention.
"""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest
from bertjax.layers.masks import Mask

LOGGER = logging.getLogger(__name__)

KERNELS = {"splash": "tpu", "cudnn": "gpu"}
"""The platform of each kernel."""

XLA = "xla"

KernelName = Annotated[str, OneOf(("", XLA, *KERNELS))]
"""A kernel; "" for the kernel of the platform where it is expected to be faster."""

MIN_KERNEL_LENGTH = {"splash": 256, "cudnn": 128}
"""Fewest queries for which a kernel is chosen by default: with fewer the weights are small.

cuDNN's is the shortest measured: on an H100, BERT-base trains 1.12 times as fast with it at 128
tokens, 1.43 times at 512 (`experiments/LOG.md`, 2026-11-26). That of splash is estimated from
compiled steps (2026-11-23).
"""

_LANES = 128
"""Width of a TPU's vector registers; block sizes are multiples of it."""
_LARGEST_BLOCK = 512
_MAX_WIDTH = 128

Attend = Callable[[Array, Array, Array, Mask], Array]


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """Static properties of an attention, known before compilation.

    Attributes:
      platform: Platform of the mesh: "tpu", "gpu" or "cpu".
      queries: L.
      keys: M.
      head_width: K.
      dtype: Type of queries, keys and values.
      dropout: Dropout rate of the weights; 0 in evaluation.
      pairs: Whether the mask has an arbitrary matrix of query and key pairs.
      sharded: Whether sequences are sharded over several devices.
      bias: Whether biases are added to the scores, as with ALiBi.
    """

    platform: str
    queries: int
    keys: int
    head_width: int
    dtype: str
    dropout: float = 0.0
    pairs: bool = False
    sharded: bool = False
    bias: bool = False


def choose(spec: AttentionSpec, requested: str = "") -> tuple[str, str]:
    """Selects a kernel; returns its name, or "xla", and the reason.

    Args:
      spec: Properties of the attention.
      requested: "" for the kernel of the platform where it is expected to be faster; a kernel's
        name to use it wherever it supports the attention; "xla" for none.

    Raises:
      UserError: an unknown kernel, or a kernel of another platform.
    """
    if requested == XLA:
        return XLA, "requested"
    if requested:
        _check(requested, spec.platform)
    kernel = requested or {where: name for name, where in KERNELS.items()}.get(spec.platform)
    if kernel is None:
        return XLA, f"there is no kernel for {spec.platform}"
    unsupported = _unsupported(kernel, spec)
    if unsupported:
        return XLA, unsupported
    if not requested and spec.queries < MIN_KERNEL_LENGTH[kernel]:
        return XLA, f"{kernel} is used for {MIN_KERNEL_LENGTH[kernel]} tokens or more"
    return kernel, "requested" if requested else "no attention weights in memory"


def _check(requested: str, platform: str) -> None:
    if requested not in KERNELS:
        known = [XLA, *KERNELS]
        raise UserError(
            f"unknown config.mesh.attention_kernel: got {requested!r}; {nearest(requested, known)}"
        )
    interpreted = requested == "splash" and platform == "cpu"
    if KERNELS[requested] != platform and not interpreted:
        raise UserError(
            f"config.mesh.attention_kernel: got {requested!r}, a kernel for {KERNELS[requested]}, "
            f"expected one for {platform}, the platform of the mesh; leave it empty for the default"
        )


def _unsupported(kernel: str, spec: AttentionSpec) -> str:
    """Returns the reason why a kernel does not support an attention; "" if it does."""
    if spec.dropout:
        return f"{kernel} does not support dropout of the weights, got {spec.dropout}"
    if spec.sharded:
        return f"{kernel} does not support sequences that are sharded over devices"
    if spec.bias:
        return f"{kernel} is not used with biases of the scores"
    if kernel == "cudnn":
        if spec.dtype not in ("bfloat16", "float16"):
            return f"cudnn requires bfloat16 or float16, got {spec.dtype}"
        if spec.head_width % 8 or spec.head_width > _MAX_WIDTH:
            return f"cudnn requires a head width of 8, 16, ... {_MAX_WIDTH}, got {spec.head_width}"
        if spec.queries % 2 or spec.keys % 2:
            return f"cudnn requires even lengths, got {spec.queries} and {spec.keys}"
        return ""
    if spec.pairs:
        return "splash supports padding, packed, causal and local masks, not arbitrary matrices"
    if spec.queries % _LANES or spec.keys % _LANES:
        return f"splash requires multiples of {_LANES} tokens, got {spec.queries} and {spec.keys}"
    return ""


def with_kernel(encoder: nn.Module, kernel: str) -> nn.Module:
    """Sets the field `attention_kernel` of an encoder unless `kernel` is "".

    Raises:
      UserError: the encoder has no such field, and `kernel` is not that of XLA.
    """
    if kernel and hasattr(encoder, "attention_kernel"):
        return encoder.clone(attention_kernel=kernel)
    if kernel not in ("", XLA):
        model = type(encoder).__module__.rpartition(".")[2]
        raise UserError(
            f"config.mesh.attention_kernel: got {kernel!r} with the model {model}, whose attention "
            f"has no kernel, expected '' or {XLA!r}; leave it out"
        )
    return encoder


@contextlib.contextmanager
def log_kernel_choice(log: Callable[[str], None]) -> Iterator[None]:
    """Passes the log lines of this module to a function, each distinct line once.

    Lines are logged when a training step is traced: the kernel of its attention and the reason.
    """

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log_once(record.getMessage())

    log_once, handler, before = functools.cache(log), Handler(), (LOGGER.level, LOGGER.propagate)
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False  # other libraries configure the root logger, which would repeat lines
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.level, LOGGER.propagate = before


def find(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B M H K"],
    mask: Mask,
    dropout: float,
    *,
    bias: bool = False,
    requested: str = "",
    train: bool,
) -> Attend | None:
    """Selects the kernel: a function of queries, keys, values and mask; None for xla.

    The platform is that of the mesh in scope. Without a mesh a kernel must be requested: the arrays
    may be on several devices, over which a kernel would not be sharded.

    Args:
      query: Q.
      key: K.
      mask: Which keys a query sees.
      dropout: Dropout rate of the weights; 0 in evaluation.
      bias: Whether biases are added to the scores.
      requested: As in `choose`.
      train: Whether the choice is logged.
    """
    mesh = jax.sharding.get_abstract_mesh()
    platform = mesh.abstract_device.platform if mesh.abstract_device else ""
    if not platform:
        if requested in ("", XLA):
            return None
        platform = jax.default_backend()
    (length,) = nn.logical_to_mesh_axes(("length",))
    spec = AttentionSpec(
        platform=platform,
        queries=query.shape[1],
        keys=key.shape[1],
        head_width=query.shape[-1],
        dtype=query.dtype.name,
        dropout=dropout,
        pairs=mask.pairs is not None,
        sharded=length is not None and _parts(length, mesh) > 1,
        bias=bias,
    )
    kernel, reason = choose(spec, requested)
    if train:
        tokens = f" of {spec.queries} tokens" if platform in KERNELS.values() else ""
        LOGGER.info("attention%s: %s: %s", tokens, kernel, reason)
    if kernel == XLA:
        return None
    if kernel == "cudnn":
        return cudnn
    return functools.partial(splash, interpret=platform == "cpu")


def _parts(axes: str | tuple[str, ...], mesh: jax.sharding.AbstractMesh) -> int:
    names = (axes,) if isinstance(axes, str) else axes
    return math.prod(mesh.shape.get(axis, 1) for axis in names)


def cudnn(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B M H K"],
    value: Float[Array, "B M H K"],
    mask: Mask,
) -> Float[Array, "B L H K"]:
    """`attend` without dropout, by cuDNN, which XLA partitions over a mesh."""
    pairs = mask.array()
    pairs = jnp.broadcast_to(pairs, (*pairs.shape[:2], query.shape[1], key.shape[1]))
    return jax.nn.dot_product_attention(query, key, value, mask=pairs, implementation="cudnn")


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
        _splash_on_a_device, causal=bool(mask.causal), window=mask.window, interpret=interpret
    )
    if not jax.sharding.get_abstract_mesh().empty:
        heads = nn.logical_to_mesh_axes(("batch", None, "heads", None))
        rows = nn.logical_to_mesh_axes(("batch", None))
        # XLA cannot partition a Pallas kernel by itself.
        specs = (heads, heads, heads, rows, rows)
        attend = jax.shard_map(attend, in_specs=specs, out_specs=heads, check_vma=False)
    context = attend(query, key, value, *_segments(mask, *query.shape[:2], key.shape[1]))
    # The kernel's backward pass is wrong by a factor of M for queries that see no key.
    sees_any = mask.array().any(axis=(1, 3))[:, :, None, None]
    return jnp.where(sees_any, context, 0)


def _segments(
    mask: Mask, batch: int, queries: int, keys: int
) -> tuple[Int[Array, "B L"], Int[Array, "B M"]]:
    """The mask as segment ids: a query sees the keys of its segment; masked keys have 0."""
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


def _splash_on_a_device(
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
        block_sizes=_block_sizes(splash_attention.BlockSizes, *shape),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )

    def attend_example(query, key, value, query_segments, key_segments):
        return kernel(query, key, value, splash_attention.SegmentIds(query_segments, key_segments))

    scaled = query * jnp.asarray(width**-0.5, query.dtype)
    heads_first = (jnp.swapaxes(x, 1, 2) for x in (scaled, key, value))
    return jnp.swapaxes(jax.vmap(attend_example)(*heads_first, query_segments, key_segments), 1, 2)


def _block_sizes(kind: type, queries: int, keys: int):
    """The largest possible blocks, and one fused kernel for the whole backward pass."""
    query_block, key_block = _block(queries), _block(keys)
    return kind(
        block_q=query_block,
        block_kv=key_block,
        block_q_dkv=query_block,
        block_kv_dkv=key_block,
        use_fused_bwd_kernel=True,
    )


def _block(length: int) -> int:
    blocks = range(_LANES, _LARGEST_BLOCK + 1, _LANES)
    return max(block for block in blocks if length % block == 0)
