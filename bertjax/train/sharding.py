"""Shardings of parameters, optimizer state and batches on a mesh of devices."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, PyTree

from bertjax.errors import UserError, nearest

DATA = "data"
MESH_AXES = (DATA, "fsdp", "tensor", "sequence")

RULES = (
    ("batch", ("data", "fsdp")),
    ("length", "sequence"),
    ("embed", "fsdp"),
    ("mlp", "tensor"),
    ("heads", "tensor"),
    ("vocab", "tensor"),
    ("kv", None),
    ("layers", None),
    ("norm", None),
)
"""The mesh axes that shard each logical axis; `config.mesh.rules` takes precedence."""

MAY_BE_REPLICATED = ("vocab",)
"""Axes that are replicated where they do not divide: published vocabularies have odd sizes."""


class MeshRules:
    """The constraint on `config.mesh.rules`: pairs of a logical axis and its mesh axes."""

    def violation(self, value: Any) -> str | None:
        try:
            _table(value)
        except UserError as error:
            return f"expected known names; {error}"
        except (TypeError, ValueError):
            return "expected pairs of a logical axis and a mesh axis, a tuple of them, or None"
        return None


class MeshSize:
    """The constraint on the size of a mesh axis."""

    def violation(self, value: Any) -> str | None:
        if type(value) is int and (value == -1 or value >= 1):
            return None
        return "expected an integer >= 1, or -1 for all remaining devices"


def make_mesh(sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Builds a mesh with the axes data, fsdp, tensor and sequence.

    With several slices, which a slower network connects, the first axes whose sizes allow it span
    slices, data before fsdp; all others stay within a slice.

    Args:
      sizes: Devices along each axis; at most one axis is -1, for all remaining devices.
      devices: All devices of all hosts by default.

    Raises:
      UserError: the product is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    shape = [sizes[axis] for axis in MESH_AXES]
    requested = ", ".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, shape, strict=True))
    if shape.count(-1) > 1 or any(size == 0 or size < -1 for size in shape):
        raise UserError(
            f"config.mesh: got {requested}, expected sizes >= 1, of which one may be -1"
        )
    fixed = math.prod(size for size in shape if size != -1)
    if -1 in shape and len(devices) % fixed == 0:
        shape[shape.index(-1)] = len(devices) // fixed
    if math.prod(shape) != len(devices):
        multiple = "a multiple of " if -1 in shape else ""
        raise UserError(
            f"config.mesh: got {requested}, which needs {multiple}{fixed} devices, found "
            f"{len(devices)}; choose sizes whose product is {len(devices)}"
        )
    kinds = (AxisType.Auto,) * len(shape)
    slices = _count_slices(devices)
    if slices == 1:
        return jax.make_mesh(shape, MESH_AXES, axis_types=kinds, devices=devices)
    across = _across_slices(shape, slices)
    within = [size // parts for size, parts in zip(shape, across, strict=True)]
    placed = mesh_utils.create_hybrid_device_mesh(
        within, across, devices, allow_split_physical_axes=True
    )
    return Mesh(placed, MESH_AXES, axis_types=kinds)


def shape_within_slice(mesh: Mesh) -> dict[str, int]:
    """The sizes of a mesh's axes within one slice."""
    shape = [mesh.shape[axis] for axis in MESH_AXES]
    across = _across_slices(shape, _count_slices(mesh.devices.flat))
    parts = zip(MESH_AXES, shape, across, strict=True)
    return {axis: size // times for axis, size, times in parts}


def _count_slices(devices: Iterable[jax.Device]) -> int:
    return len({getattr(device, "slice_index", 0) for device in devices})


def _across_slices(shape: Sequence[int], slices: int) -> list[int]:
    """The number of slices along each axis."""
    across, left = [], slices
    for size in shape:
        across.append(math.gcd(size, left))
        left //= across[-1]
    return across


def shardings(boxed: PyTree, mesh: Mesh, rules: Sequence[tuple]) -> PyTree:
    """The sharding of every array of a boxed state.

    Args:
      boxed: Shapes (`jax.eval_shape`) with the names of their logical axes.
      mesh: The mesh.
      rules: (logical axis, mesh axis, several of them, or None), in order of precedence.

    Raises:
      UserError: an axis does not divide over its part of the mesh.
    """
    table = _table(rules)

    def place(path, spec, shape):
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        named_sizes = zip(spec, shape.shape, strict=False)
        axes = [
            _mesh_axes(where, name, size, mesh, table.get(name, ())) for name, size in named_sizes
        ]
        used = [axis for several in axes for axis in several]
        if len(used) > len(set(used)):
            raise UserError(
                f"config.mesh.rules: got one mesh axis for two axes of {where}, {tuple(spec)}, "
                "expected different ones; change one of them, or set it to None"
            )
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree_util.tree_map_with_path(
        place,
        logical_axes(boxed),
        nn.meta.unbox(boxed),
        is_leaf=lambda node: isinstance(node, PartitionSpec),
    )


def sharded_shapes(boxed: PyTree, mesh: Mesh, rules: Sequence[tuple]) -> PyTree:
    """The unboxed shapes of a state with their shardings; see `shardings`."""
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        nn.meta.unbox(boxed),
        shardings(boxed, mesh, rules),
    )


def logical_axes(boxed: PyTree) -> PyTree:
    """The names of the axes of each array, as partition specs; empty for an array without names."""
    return nn.get_partition_spec(boxed)


def map_boxed(function: Callable[[tuple, Any], Any], params: PyTree) -> PyTree:
    """Maps a function of path and array over parameters, of which some are boxed with axis names.

    An optimizer whose state has other shapes than the parameters initialises it by this.
    """
    return jax.tree_util.tree_map_with_path(function, params, is_leaf=_is_boxed)


def unbox(parameter: Any) -> Any:
    """An array without the names of its axes."""
    return nn.meta.unbox(parameter)


def zeros_without(parameter: Any, axes: Sequence[int]) -> Any:
    """Zeros of a parameter's shape without some axes; boxed with the names of the others."""
    array = unbox(parameter)
    kept = [axis for axis in range(array.ndim) if axis not in axes]
    zeros = jnp.zeros([array.shape[axis] for axis in kept], array.dtype)
    if not _is_boxed(parameter):
        return zeros
    return parameter.replace(value=zeros, names=tuple(parameter.names[axis] for axis in kept))


def _is_boxed(leaf: Any) -> bool:
    return isinstance(leaf, nn.Partitioned)


def shard_over_data(shapes: PyTree) -> PyTree:
    """Shards each array over the data axis as well, where it divides (ZeRO, stage 1).

    Each device then updates only its shard: gradients are reduce-scattered, and updated parameters
    all-gathered (Rajbhandari et al. 2020, section 5.1).
    """
    return jax.tree.map(_shard_leaf, shapes)


def _shard_leaf(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    mesh, spec = leaf.sharding.mesh, leaf.sharding.spec
    axes = [axis_names(axes) for axes in (*spec, *[None] * (leaf.ndim - len(spec)))]
    if any(DATA in used for used in axes):
        return leaf
    parts = [math.prod(mesh.shape[axis] for axis in used) for used in axes]
    # Unsharded axes first: a reduce-scatter along them needs no further communication.
    for number in sorted(range(leaf.ndim), key=lambda number: parts[number] > 1):
        if leaf.shape[number] % (parts[number] * mesh.shape[DATA]) == 0:
            axes[number] = (*axes[number], DATA)
            where = NamedSharding(mesh, PartitionSpec(*axes))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
    return leaf


def on_mesh(function: Callable, mesh: Mesh, rules: Sequence[tuple]) -> Callable:
    """Wraps a function to be jitted so that its layers are traced for a mesh.

    They shard their activations over it, and use the attention kernels of its platform.
    """

    @functools.wraps(function)
    def traced(*arguments):
        with (
            jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
            nn.logical_axis_rules(rules),
        ):
            return function(*arguments)

    return traced


def num_data_shards() -> int:
    """Size of the data axis of the mesh in scope."""
    return dict(jax.sharding.get_abstract_mesh().shape).get(DATA, 1)


def num_parts(axes: Sequence[str | tuple[str, ...] | None]) -> int:
    """Number of shards of an array with these entries of a `PartitionSpec`, on that mesh."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return math.prod(sizes[axis] for entry in axes for axis in axis_names(entry))


def vmap_data_shards(function: Callable) -> Callable:
    """Maps a function of one shard of a batch over [shards ...], each on its own devices."""

    def within_shard(shard):
        rules = [(name, _without_data(axes)) for name, axes in nn.get_logical_axis_rules()]
        with nn.logical_axis_rules(rules):
            return function(shard)

    return jax.vmap(within_shard, spmd_axis_name=DATA)


def _without_data(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(axis for axis in axis_names(axes) if axis != DATA)


def axis_names(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes in one entry of a `PartitionSpec`."""
    return (axes,) if isinstance(axes, str) else tuple(axes or ())


def _table(rules: Sequence[tuple]) -> dict[str, tuple[str, ...]]:
    """The mesh axes of each logical axis; the first rule with its name applies."""
    table = {}
    for name, axes in rules:
        axes = axis_names(axes)
        _check_known("logical axis", [name], [known for known, _ in RULES])
        _check_known("mesh axis", axes, MESH_AXES)
        table.setdefault(name, axes)
    return table


def _check_known(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"config.mesh.rules: no {kind} {name!r}: {nearest(name, known)}")


def _mesh_axes(
    where: str, name: str | None, size: int, mesh: Mesh, axes: tuple[str, ...]
) -> tuple[str, ...]:
    """The mesh axes that shard one axis of an array."""
    if size % math.prod(mesh.shape[axis] for axis in axes) == 0:
        return axes
    if name in MAY_BE_REPLICATED:
        return ()
    parts = " x ".join(f"{axis}={mesh.shape[axis]}" for axis in axes)
    raise UserError(
        f"{where}: got size {size} of axis {name!r}, expected a multiple of {parts}; change "
        "config.mesh or the size"
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: examples over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def check_batch_size(
    batch_size: int, mesh: Mesh, microbatches: int = 1, packed_examples: int = 1
) -> None:
    """Checks that a batch divides into equal parts for all devices and microbatches.

    Args:
      batch_size: Number of examples.
      mesh: The devices.
      microbatches: Number of microbatches.
      packed_examples: Number of consecutive examples that share rows, which no part separates.

    Raises:
      UserError: the batch size is not a multiple of the number of parts.
    """
    if microbatches < 1:
        raise UserError(f"microbatches: got {microbatches}, expected an integer >= 1")
    parts = mesh.shape["data"] * mesh.shape["fsdp"] * microbatches * packed_examples
    if batch_size % parts:
        low = batch_size // parts * parts
        whole = f", multiples of packed_examples={packed_examples}" if packed_examples > 1 else ""
        raise UserError(
            f"batch_size={batch_size} does not divide into data={mesh.shape['data']} x "
            f"fsdp={mesh.shape['fsdp']} x microbatches={microbatches} equal parts{whole}; "
            f"nearest: {', '.join(str(n) for n in (low, low + parts) if n)}"
        )


def check_length(length: int, mesh: Mesh) -> None:
    """Checks that sequences divide over the sequence axis.

    Raises:
      UserError: the length is not a multiple of the size of the axis.
    """
    parts = mesh.shape["sequence"]
    if length % parts:
        low = length // parts * parts
        raise UserError(
            f"max_seq_length={length} does not divide into sequence={parts} equal parts; "
            f"nearest: {', '.join(str(n) for n in (low, low + parts) if n)}"
        )


def local_rows(batch_size: int, mesh: Mesh) -> Int[np.ndarray, " n"]:
    """The rows of the global batch that are on this host's devices, which it builds.

    Hosts along the tensor or sequence axis build the same rows.
    """
    slices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[rows] for rows in slices]))


def to_global(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Builds the global arrays of a batch from this host's rows."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }
