"""Gradient cache: a loss that compares all examples of a batch, in the memory of a microbatch.

Gao, Zhang, Han and Callan 2021, section 3: all examples are embedded without keeping residuals, the
loss and its gradient with respect to the embeddings are computed for the whole batch, and each
microbatch is encoded again to propagate its part. A checkpointed scan computes just this.
"""

from typing import Any

import jax

from bertjax.interfaces import Batch, Params
from bertjax.layers.dropout import per_example_key
from bertjax.pretrainer import Pretrainer, Sum
from bertjax.train.accumulation import merge_microbatches, split_microbatches
from bertjax.train.sharding import num_data_shards, vmap_data_shards


def apply(
    pretrainer: Pretrainer,
    variables: Params,
    batch: Batch,
    dropout: jax.Array,
    dropout_keys: jax.Array,
    microbatches: int,
) -> tuple[dict[str, Sum], dict[str, Sum]]:
    """Computes the losses and metrics of a training batch, as `Pretrainer.__call__` does.

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
        rows, keys = part
        rngs = {"dropout": per_example_key(dropout, keys)}
        return pretrainer.apply(variables, rows, train=True, rngs=rngs, method="embed")

    def one_part(carry: None, part: Any) -> tuple[None, jax.Array]:
        return carry, vmap_data_shards(embed)(part)

    parts = split_microbatches((batch, dropout_keys), microbatches, num_data_shards())
    _, embeddings = jax.lax.scan(one_part, None, parts)
    embeddings = merge_microbatches(embeddings)
    return pretrainer.apply(variables, embeddings, batch, method="losses_of_embeddings")
