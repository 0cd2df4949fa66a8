"""Token, segment and position embeddings (Devlin et al. 2019, section 3, figure 2)."""

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from bertjax.layers.dense import Axes, Initializer, truncated_normal
from bertjax.layers.precision import Precision, contract


class Embedding(nn.Module):
    """A table of vectors, read by row or used as the output layer of a language model.

    Attributes:
      num_embeddings: Rows, such as the vocabulary size.
      features: Width of a vector.
      axes: Logical names of the two axes of the table.
      initializer: Makes the table at the start.
      precision: Types of operands and results.
    """

    num_embeddings: int
    features: int
    axes: Axes
    initializer: Initializer = truncated_normal(0.02)
    precision: Precision = Precision()

    def setup(self):
        self.embedding = self.param(
            "embedding",
            nn.with_logical_partitioning(self.initializer, self.axes),
            (self.num_embeddings, self.features),
        )

    def __call__(self, ids: Int[Array, "*lead"]) -> Float[Array, "*lead E"]:
        # Reading from a table whose width is sharded would shard the width of all vectors, and then
        # move every one of them to its example's device: the table is brought together instead.
        table = nn.with_logical_constraint(self.embedding, (PartitionSpec.UNCONSTRAINED, None))
        return jnp.take(table, ids, axis=0).astype(self.precision.activations)

    def attend(self, hidden: Float[Array, "*lead E"]) -> Float[Array, "*lead V"]:
        """Products of `hidden` with every row of the table."""
        flat = hidden.reshape(-1, self.features)
        scores = contract("ne,ve->nv", flat, self.embedding, self.precision)
        return scores.reshape(*hidden.shape[:-1], self.num_embeddings)
