"""Fused attention kernels, which never materialise the weights [B H L M] (Dao et al. 2022).

splash  JAX's kernel for TPUs, without dropout of the weights (`layers/splash_attention.py`)
pallas  a kernel for TPUs with dropout of the weights (`layers/dropout_attention.py`)
cudnn   NVIDIA's kernel for GPUs
xla     no fused kernel: the matmuls and the softmax of `layers/attention.py`

`choose` selects one from the platform and the properties of an attention. On CPUs the kernels for
TPUs are interpreted, which is for tests.
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
from jaxtyping import Array, Float

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest
from bertjax.layers.dropout import DropoutKeys
from bertjax.layers.masks import Mask

LOGGER = logging.getLogger(__name__)

KERNELS = {"splash": "tpu", "pallas": "tpu", "cudnn": "gpu"}
"""The platform of each kernel."""

_DEFAULTS = {"tpu": "splash", "gpu": "cudnn"}
"""The kernel of each platform that is chosen by default.

pallas is not: it was compiled for TPUs and interpreted, but never run on one, and a fault of a
default would be a fault of every run on TPUs with dropout.
"""

XLA = "xla"

KernelName = Annotated[str, OneOf(("", XLA, *KERNELS))]
"""A kernel; "" for the kernel of the platform where it is expected to be faster."""

MIN_KERNEL_LENGTH = {"splash": 256, "cudnn": 128}
"""Fewest queries for which a kernel is chosen by default: with fewer the weights are small.

cuDNN's is the shortest measured: on an H100, BERT-base trains 1.12 times as fast with it at 128
tokens, 1.43 times at 512 (`experiments/LOG.md`, 2026-11-26). That of splash is estimated from
compiled steps (2026-11-23).
"""

_MAX_WIDTH = 128
_MAX_KEYS = 2048
"""Most keys for pallas, whose programs hold all keys of a head."""

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
      local: Whether xla computes local attention in blocks, which have their own dropout masks.
      counters: Whether dropout's bits can be computed from counters (`DropoutKeys`).
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
    local: bool = False
    counters: bool = True


def choose(spec: AttentionSpec, requested: str = "") -> tuple[str, str]:
    """Selects a kernel; returns its name, or "xla", and the reason.

    Args:
      spec: Properties of the attention.
      requested: "" for the kernel of the platform where it is expected to be faster; a kernel's
        name to use it wherever it supports the attention, or splash for pallas where there is no
        dropout, as in evaluation; "xla" for none.

    Raises:
      UserError: an unknown kernel, or a kernel of another platform.
    """
    if requested == XLA:
        return XLA, "requested"
    if requested:
        _check(requested, spec.platform)
    kernel = requested or _DEFAULTS.get(spec.platform)
    if kernel == "pallas" and not spec.dropout:
        kernel = "splash"
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
    interpreted = KERNELS[requested] == "tpu" and platform == "cpu"
    if KERNELS[requested] != platform and not interpreted:
        raise UserError(
            f"config.mesh.attention_kernel: got {requested!r}, a kernel for {KERNELS[requested]}, "
            f"expected one for {platform}, the platform of the mesh; leave it empty for the default"
        )


def _unsupported(kernel: str, spec: AttentionSpec) -> str:
    """Returns the reason why a kernel does not support an attention; "" if it does."""
    if spec.dropout and kernel != "pallas":
        hint = "; pallas does, but was never run on a TPU" if kernel == "splash" else ""
        return f"{kernel} does not support dropout of the weights, got {spec.dropout}{hint}"
    if spec.sharded:
        return f"{kernel} does not support sequences that are sharded over devices"
    if spec.bias:
        return f"{kernel} is not used with biases of the scores"
    return _unsupported_on_gpu(spec) if kernel == "cudnn" else _unsupported_on_tpu(kernel, spec)


def _unsupported_on_gpu(spec: AttentionSpec) -> str:
    if spec.dtype not in ("bfloat16", "float16"):
        return f"cudnn requires bfloat16 or float16, got {spec.dtype}"
    if spec.head_width % 8 or spec.head_width > _MAX_WIDTH:
        return f"cudnn requires a head width of 8, 16, ... {_MAX_WIDTH}, got {spec.head_width}"
    if spec.queries % 2 or spec.keys % 2:
        return f"cudnn requires even lengths, got {spec.queries} and {spec.keys}"
    return ""


def _unsupported_on_tpu(kernel: str, spec: AttentionSpec) -> str:
    from bertjax.layers.splash_attention import LANES

    if spec.pairs:
        return f"{kernel} supports padding, packed, causal and local masks, not arbitrary matrices"
    if spec.queries % LANES or spec.keys % LANES:
        return f"{kernel} requires multiples of {LANES} tokens, got {spec.queries} and {spec.keys}"
    if kernel == "splash":
        return ""
    if spec.local:
        return "pallas is not used with local attention, which xla computes in blocks"
    if spec.keys > _MAX_KEYS or spec.head_width > _MAX_WIDTH:
        return (
            f"pallas requires {_MAX_KEYS} keys or fewer of a width of {_MAX_WIDTH} or less, got "
            f"{spec.keys} of {spec.head_width}"
        )
    if not spec.counters:
        return "pallas requires keys of threefry2x32, and 2**34 weights of an example or fewer"
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
    dropout: DropoutKeys | None,
    *,
    bias: bool = False,
    local: bool = False,
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
      dropout: Dropout of the weights; None in evaluation.
      bias: Whether biases are added to the scores.
      local: Whether xla computes it in blocks (`layers/local_attention.py`).
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
    batch, queries, heads, width = query.shape
    spec = AttentionSpec(
        platform=platform,
        queries=queries,
        keys=key.shape[1],
        head_width=width,
        dtype=query.dtype.name,
        dropout=dropout.rate if dropout else 0.0,
        pairs=mask.pairs is not None,
        sharded=length is not None and _parts(length, mesh) > 1,
        bias=bias,
        local=local,
        counters=dropout is None or dropout.has_counters((batch, heads, queries, key.shape[1])),
    )
    kernel, reason = choose(spec, requested)
    if train:
        tokens = f" of {spec.queries} tokens" if platform in KERNELS.values() else ""
        LOGGER.info("attention%s: %s: %s", tokens, kernel, reason)
    if kernel == XLA:
        return None
    if kernel == "cudnn":
        return cudnn
    if kernel == "pallas":
        from bertjax.layers.dropout_attention import dropout_attention  # imports Pallas

        return functools.partial(dropout_attention, dropout=dropout, interpret=platform == "cpu")
    from bertjax.layers.splash_attention import splash

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
