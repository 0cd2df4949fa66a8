"""Gradient-disentangled sharing of word embeddings (He et al. 2023, DeBERTaV3, section 3.3).

A generator and a discriminator share one table, which only the generator trains; the discriminator
trains its difference from that table. Both tables are parameters of the encoder, so that it
computes the same without the generator; fine-tuning trains the difference alone.
"""

import flax.linen as nn
from jax import lax
from jaxtyping import Array, Float, Int

from bertjax.layers.dense import Initializer, Precision, truncated_normal
from bertjax.layers.embeddings import Embedding


class DisentangledEmbedding(nn.Module):
    """Embeddings E_D = stop_gradient(E_G) + E_delta, where E_delta is initially zero.

    Attributes:
      num_embeddings: Rows, such as the vocabulary size.
      features: Width of a vector.
      initializer: Initialiser of E_G.
      precision: Types of operands and results.
    """

    num_embeddings: int
    features: int
    initializer: Initializer = truncated_normal(0.02)
    precision: Precision = Precision()

    def setup(self):
        size, axes = (self.num_embeddings, self.features), ("vocab", "embed")
        self.generator = Embedding(*size, axes, self.initializer, self.precision)
        self.delta = Embedding(*size, axes, nn.initializers.zeros, self.precision)

    def __call__(self, ids: Int[Array, "*lead"]) -> Float[Array, "*lead E"]:
        """Vectors of the discriminator, E_D."""
        return lax.stop_gradient(self.generator(ids)) + self.delta(ids)

    def shared(self, ids: Int[Array, "*lead"]) -> Float[Array, "*lead E"]:
        """Vectors of the generator, E_G."""
        return self.generator(ids)

    def attend(self, hidden: Float[Array, "*lead E"]) -> Float[Array, "*lead V"]:
        """Logits of the generator: the dot product of `hidden` with every row of E_G."""
        return self.generator.attend(hidden)
