"""Character CNN for words: convolutions, max-pooling over characters, highway layers.

Kim et al. 2016, as ELMo uses it (Peters et al. 2018, section 3.4). It has no vocabulary of words.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.layers.dense import Dense, Precision, activation, contract

NUM_CHARACTERS = 261
"""256 bytes; start and end of a sentence and of a word; padding (`data/characters.py`)."""

_UNIFORM = 0.05 / math.sqrt(3)
"""Standard deviation of the published initialiser of the filters, uniform in [-0.05, 0.05]."""


def _uniform_initializer(limit: float):
    def initialize(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return initialize


class Convolution(nn.Module):
    """Convolution over the characters of a word with max-pooling, for filters of one width.

    Attributes:
      width: Width of a filter in characters.
      features: Number of filters.
      precision: Types of operands and results.
    """

    width: int
    features: int
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, characters: Float[Array, "n W E"]) -> Float[Array, "n F"]:
        num_positions = characters.shape[1] - self.width + 1
        windows = [characters[:, start : start + num_positions] for start in range(self.width)]
        dense = Dense(
            (self.features,),
            (None, "mlp"),
            initializer_range=_UNIFORM,
            precision=self.precision,
            name="dense",
        )
        return dense(jnp.concatenate(windows, axis=-1)).max(axis=1)


class Highway(nn.Module):
    """Highway layer (Srivastava et al. 2015), whose gate is initially closed.

    Attributes:
      precision: Types of operands and results.
    """

    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x: Float[Array, "n F"]) -> Float[Array, "n F"]:
        width = x.shape[-1]

        def dense(name, initial_bias):
            return Dense(
                (width,),
                (None, "mlp"),
                initializer_range=width**-0.5,
                initial_bias=initial_bias,
                precision=self.precision,
                name=name,
            )(x)

        gate = jax.nn.sigmoid(dense("carry", -2.0))
        return gate * jax.nn.relu(dense("transform", 0.0)) + (1 - gate) * x


class CharacterCNN(nn.Module):
    """Computes a vector for each word from its characters.

    Attributes:
      features: Width of the vectors.
      filters: (width, number) of each kind of filter.
      char_embedding_size: Width of the character embeddings.
      num_highway_layers: Highway layers between filters and projection.
      hidden_act: Activation of the filters; must be monotonic, since it is applied after pooling.
      precision: Types of operands and results.
    """

    features: int
    filters: tuple[tuple[int, int], ...]
    char_embedding_size: int = 16
    num_highway_layers: int = 2
    hidden_act: str = "relu"
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, char_ids: Int[Array, "B L W"]) -> Float[Array, "B L D"]:
        table = self.param(
            "characters",
            nn.with_logical_partitioning(_uniform_initializer(1.0), (None, None)),
            (NUM_CHARACTERS, self.char_embedding_size),
        )
        words = char_ids.reshape(-1, char_ids.shape[-1])
        x = self._look_up(table, words)
        pooled = [
            Convolution(width, number, self.precision, name=f"filters_{index}")(x)
            for index, (width, number) in enumerate(self.filters)
        ]
        x = activation(self.hidden_act)(jnp.concatenate(pooled, axis=-1))
        for layer in range(self.num_highway_layers):
            x = Highway(self.precision, name=f"highway_{layer}")(x)
        project = Dense(
            (self.features,),
            (None, "embed"),
            initializer_range=x.shape[-1] ** -0.5,
            precision=self.precision,
            name="project",
        )
        return project(x).reshape(*char_ids.shape[:-1], self.features)

    def _look_up(self, table: Float[Array, "C E"], ids: Int[Array, "n W"]) -> Float[Array, "n W E"]:
        """Looks up a small table by a matmul, whose gradient is a matmul and not a scatter."""
        chosen = jax.nn.one_hot(ids.reshape(-1), NUM_CHARACTERS, dtype=self.precision.operands)
        rows = contract("nc,ce->ne", chosen, table, self.precision)
        return rows.reshape(*ids.shape, table.shape[-1])
