"""Training batches in microbatches: accumulation of gradients, and the gradient cache.

Each shard of the data axis accumulates its own gradient over its microbatches; the sums are
all-reduced once per step, for any number of microbatches. A loss that compares all examples of a
batch is no sum over microbatches: the gradient cache computes it in the memory of one of them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bertjax.errors import UserError
from bertjax.interfaces import Batch, Params
from bertjax.layers.dropout import per_example_key
from bertjax.pretrainer import Pretrainer, Sum
from bertjax.train.sharding import DATA, axis_names, num_data_shards, num_parts, vmap_data_shards


def split_microbatches(batch: Any, parts: int, shards: int, rows_per_example: int = 1) -> Any:
    """Reshapes [B ...] to [parts shards b ...]; no row moves to another device.

    Args:
      batch: The arrays.
      parts: Number of microbatches.
      shards: Number of shards of the data axis.
      rows_per_example: Number of consecutive rows that stay together.

    Raises:
      UserError: B is not a multiple of the product of the three numbers.
    """

    def one(x):
        if x.shape[0] % (multiple := parts * shards * rows_per_example):
            raise UserError(
                f"got {x.shape[0]} sequences per batch, expected a multiple of {multiple}: "
                f"{rows_per_example} per example x {parts} microbatches x {shards} shards; change "
                "batch_size, microbatches or the number of devices"
            )
        split = x.reshape(shards, -1, parts, rows_per_example, *x.shape[1:])
        split = jnp.moveaxis(split, 2, 0).reshape(parts, shards, -1, *x.shape[1:])
        return _constrain_sharding(split, (None, DATA, "fsdp"))

    return jax.tree.map(one, batch)


def merge_microbatches(parts: Any, rows_per_example: int = 1) -> Any:
    """Reshapes [parts shards b ...] back to [B ...]."""

    def one(x):
        split = x.reshape(*x.shape[:2], -1, rows_per_example, *x.shape[3:])
        return jnp.moveaxis(split, 0, 2).reshape(-1, *x.shape[3:])

    return jax.tree.map(one, parts)


def sum_over(function: Callable, parts: Any) -> tuple[Any, Any]:
    """Sums the results of a function over the leading axis of `parts`, in a scan.

    `function(part)` returns a pair: the first is summed over parts, the second is stacked.
    """
    shapes, _ = jax.eval_shape(function, jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(
        lambda shape: _constrain_sharding(jnp.zeros(shape.shape, shape.dtype), (DATA,)), shapes
    )

    def add(sums, part):
        values, own = function(part)
        return jax.tree.map(jnp.add, sums, values), own

    return jax.lax.scan(add, zeros, parts)


def apply_with_gradient_cache(
    pretrainer: Pretrainer,
    variables: Params,
    batch: Batch,
    dropout: jax.Array,
    dropout_keys: jax.Array,
    microbatches: int,
) -> tuple[dict[str, Sum], dict[str, Sum]]:
    """Computes the losses and metrics of a training batch, as `Pretrainer.__call__` does.

    Gao, Zhang, Han and Callan 2021, section 3: all examples are embedded without keeping residuals,
    the loss and its gradient with respect to the embeddings are computed for the whole batch, and
    each microbatch is encoded again to propagate its part. A checkpointed scan computes just this.

    Args:
      pretrainer: An encoder with one task, whose `compares_examples` is true.
      variables: Its variables.
      batch: The global batch.
      dropout: Key of the step.
      dropout_keys: Key of each sequence of the batch.
      microbatches: Number of parts in which the batch is encoded.
    """

    @jax.checkpoint
    def embed(part: tuple[Batch, jax.Array]) -> jax.Array:
        examples, keys = part
        rngs = {"dropout": per_example_key(dropout, keys)}
        return pretrainer.apply(variables, examples, train=True, rngs=rngs, method="embed")

    def one_part(carry: None, part: Any) -> tuple[None, jax.Array]:
        return carry, vmap_data_shards(embed)(part)

    rows = pretrainer.rows_per_example()
    parts = split_microbatches((batch, dropout_keys), microbatches, num_data_shards(), rows)
    _, embeddings = jax.lax.scan(one_part, None, parts)
    embeddings = merge_microbatches(embeddings, rows)
    return pretrainer.apply(variables, embeddings, batch, method="losses_of_embeddings")


def reduce_shards(sums: Any, dtype: jnp.dtype | None = None, specs: Any = None) -> Any:
    """Sums [shards ...] to [...] over the data axis: an all-reduce, or a reduce-scatter.

    Args:
      sums: The sums of each shard.
      dtype: Dtype of the communication, if it differs from that of the sums.
      specs: `PartitionSpec`s of the results, if each device needs only its shard of them.
    """
    if specs is None or num_data_shards() == 1:
        return jax.tree.map(lambda x: _all_reduce(x, dtype), sums)
    return jax.tree.map(lambda x, spec: _reduce_scatter(x, dtype, spec), sums, specs)


def _all_reduce(x: jax.Array, dtype: jnp.dtype | None) -> jax.Array:
    if dtype is None or len(x) == 1:
        return x.sum(0)
    # `sum` would accumulate, and communicate, in float32.
    short = jax.lax.reduce(x.astype(dtype), jnp.zeros((), dtype), jax.lax.add, (0,))
    return short.astype(x.dtype)


def _reduce_scatter(x: jax.Array, dtype: jnp.dtype | None, spec: PartitionSpec) -> jax.Array:
    """Reduce-scatters explicitly: XLA itself would all-reduce and slice."""
    sharded = [axis for axis, axes in enumerate(spec) if DATA in axis_names(axes)]
    if not sharded:
        return _all_reduce(x, dtype)
    before, after = x.shape[1 : sharded[0] + 1], x.shape[sharded[0] + 2 :]
    # The TPU compiler scatters matrices; with several trailing axes, as of heads, it all-reduces.
    flat = (-1,) if after and num_parts(spec[sharded[0] + 1 :]) == 1 else after

    def own_part(x: jax.Array) -> jax.Array:
        message = x.astype(dtype or x.dtype).reshape(*before, x.shape[sharded[0] + 1], *flat)
        part = jax.lax.psum_scatter(message, DATA, scatter_dimension=sharded[0], tiled=True)
        return part.astype(x.dtype).reshape(*before, part.shape[sharded[0]], *after)

    options = {
        "in_specs": PartitionSpec(DATA),
        "out_specs": PartitionSpec(*[None] * sharded[0], DATA),
    }
    reduce_scatter = jax.shard_map(own_part, axis_names={DATA}, **options)
    if dtype is None:
        return reduce_scatter(x)
    # XLA for CPUs aborts on a bfloat16 reduce-scatter on a mesh of several axes.
    return jax.lax.platform_dependent(
        x, cpu=lambda x: _all_reduce(x, dtype), default=reduce_scatter
    )


def _constrain_sharding(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Constrains the sharding of the first axes; that of the others is left to the compiler."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - len(axes))
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes, *free))
