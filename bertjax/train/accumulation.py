"""Gradient accumulation over microbatches, with one reduction over the data axis at the end.

Along the mesh's data axis every shard sums up a gradient of its own, and only the sums meet: once a
step, whatever the number of parts.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bertjax.train.sharding import DATA, data_shards, named, parts_of


def split_microbatches(batch: Any, parts: int, shards: int) -> Any:
    """[B ...] becomes [parts shards b ...]; every device keeps the rows that it holds."""

    def one(x):
        x = x.reshape(shards, -1, parts, *x.shape[1:])
        return _placed(jnp.moveaxis(x, 2, 0), (None, DATA, "fsdp"))

    return jax.tree.map(one, batch)


def merge_microbatches(parts: Any) -> Any:
    """[parts shards b ...] becomes [B ...] again."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(-1, *x.shape[3:]), parts)


def sum_over(function: Callable, parts: Any) -> tuple[Any, Any]:
    """Works on the leading axis of `parts`, one part after the other.

    `function(part)` gives what is added up, of each shard, and what is returned for each part.
    """
    shapes, _ = jax.eval_shape(function, jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(
        lambda shape: _placed(jnp.zeros(shape.shape, shape.dtype), (DATA,)), shapes
    )

    def add(sums, part):
        values, own = function(part)
        return jax.tree.map(jnp.add, sums, values), own

    return jax.lax.scan(add, zeros, parts)


def reduce_shards(sums: Any, dtype: jnp.dtype | None = None, placed: Any = None) -> Any:
    """[shards ...] becomes [...]: what the shards bring together.

    Args:
      sums: Of each shard.
      dtype: What travels between devices, where another type than that of the sums.
      placed: How each of [...] is cut, if every device needs a part alone: it is sent no more.
    """
    if placed is None or data_shards() == 1:
        return jax.tree.map(lambda x: _summed(x, dtype), sums)
    return jax.tree.map(lambda x, spec: _scattered(x, dtype, spec), sums, placed)


def _summed(x: jax.Array, dtype: jnp.dtype | None) -> jax.Array:
    if dtype is None or len(x) == 1:
        return x.sum(0)
    # `sum` would add up in float32, and send that.
    short = jax.lax.reduce(x.astype(dtype), jnp.zeros((), dtype), jax.lax.add, (0,))
    return short.astype(x.dtype)


def _scattered(x: jax.Array, dtype: jnp.dtype | None, spec: PartitionSpec) -> jax.Array:
    """Said by hand: left to itself, the compiler sums all on every device and cuts its part out."""
    cut = [number for number, axes in enumerate(spec) if DATA in named(axes)]
    if not cut:
        return _summed(x, dtype)
    before, behind = x.shape[1 : cut[0] + 1], x.shape[cut[0] + 2 :]
    # A TPU scatters rows; several axes behind the one that is cut it would sum whole, like heads.
    flat = (-1,) if behind and parts_of(spec[cut[0] + 1 :]) == 1 else behind

    def own_part(x: jax.Array) -> jax.Array:
        sent = x.astype(dtype or x.dtype).reshape(*before, x.shape[cut[0] + 1], *flat)
        part = jax.lax.psum_scatter(sent, DATA, scatter_dimension=cut[0], tiled=True)
        return part.astype(x.dtype).reshape(*before, part.shape[cut[0]], *behind)

    specs = {"in_specs": PartitionSpec(DATA), "out_specs": PartitionSpec(*[None] * cut[0], DATA)}
    scattered = jax.shard_map(own_part, axis_names={DATA}, **specs)
    if dtype is None:
        return scattered(x)
    # XLA for CPUs aborts where bfloat16 is scattered on a mesh of several axes.
    return jax.lax.platform_dependent(x, cpu=lambda x: _summed(x, dtype), default=scattered)


def _placed(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Places the first axes; how the others lie is the compiler's to say."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - len(axes))
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes, *free))
