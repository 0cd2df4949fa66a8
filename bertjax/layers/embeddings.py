"""Token, segment and position embeddings (Devlin et al. 2019, section 3, figure 2); norms.

LayerNorm and RMSNorm are computed in float32 for inputs of any dtype. Positions are learned, or
sinusoids, or learned and initialised from sinusoids.

Gradient-disentangled sharing of word embeddings (He et al. 2023, DeBERTaV3, section 3.3): a
generator and a discriminator share one table, which only the generator trains; the discriminator
trains its difference from that table. Both tables are parameters of the encoder, so that it
computes the same without the generator; fine-tuning trains the difference alone.
"""

import functools
from collections.abc import Callable
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest
from bertjax.layers.dense import Axes, Initializer, Precision, contract, truncated_normal


class Embedding(nn.Module):
    """Embedding table, which can also be the tied output layer of a language model.

    Attributes:
      num_embeddings: Rows, such as the vocabulary size.
      features: Width of a vector.
      axes: Logical names of the two axes of the table.
      initializer: Initialiser of the table.
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
        # A lookup in a table whose width is sharded would shard the width of all vectors, and then
        # move every vector to its example's device: an all-gather of the table is cheaper.
        table = nn.with_logical_constraint(self.embedding, (PartitionSpec.UNCONSTRAINED, None))
        return jnp.take(table, ids, axis=0).astype(self.precision.activations)

    def attend(self, hidden: Float[Array, "*lead E"]) -> Float[Array, "*lead V"]:
        """Logits: the dot product of `hidden` with every row of the table."""
        flat = hidden.reshape(-1, self.features)
        scores = contract("ne,ve->nv", flat, self.embedding, self.precision)
        return scores.reshape(*hidden.shape[:-1], self.num_embeddings)


_ones = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
_zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("norm",))


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis (Ba et al. 2016).

    Attributes:
      epsilon: Added to the variance; BERT publishes 1e-12.
      use_bias: Whether a bias is added.
      use_scale: Whether the result is scaled by a parameter.
    """

    epsilon: float = 1e-12
    use_bias: bool = True
    use_scale: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        shape = (x.shape[-1],)
        scale = self.param("scale", _ones, shape) if self.use_scale else None
        bias = self.param("bias", _zeros, shape) if self.use_bias else None
        return _normalize(x, scale, bias, self.epsilon, True)


class RMSNorm(nn.Module):
    """Normalisation by the root mean square (Zhang & Sennrich 2019, equation 4).

    Attributes:
      epsilon: Added to the mean square.
      use_bias: Whether a bias is added.
    """

    epsilon: float = 1e-5
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        shape = (x.shape[-1],)
        scale = self.param("scale", _ones, shape)
        bias = self.param("bias", _zeros, shape) if self.use_bias else None
        return _normalize(x, scale, bias, self.epsilon, False)


# The input is the only residual: float32 intermediates would take twice the memory of bfloat16.
@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=(3, 4))
def _normalize(
    x: Float[Array, "*lead D"],
    scale: Float[Array, " D"] | None,
    bias: Float[Array, " D"] | None,
    epsilon: float,
    center: bool,
) -> Float[Array, "*lead D"]:
    y = x.astype(jnp.float32)
    if center:
        y = y - y.mean(axis=-1, keepdims=True)
    y = y * lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + epsilon)
    if scale is not None:
        y = y * scale
    if bias is not None:
        y = y + bias
    return y.astype(x.dtype)


_MAX_WAVELENGTH = 10_000.0


def sinusoids(length: int, width: int) -> Float[np.ndarray, "L D"]:
    """Sinusoidal position embeddings, sines then cosines (Vaswani et al. 2017, section 3.5).

    Frequencies go from 1 down to 1/10,000; a shift by k positions rotates every pair by an angle
    that does not depend on the position.
    """
    return sinusoids_at(np.arange(length), width)


def sinusoids_at(positions: Int[np.ndarray, " L"], width: int) -> Float[np.ndarray, "L D"]:
    """Sinusoidal embeddings of given positions or distances, which may be negative."""
    frequencies = _MAX_WAVELENGTH ** (-np.arange(0, width, 2) / width)
    angles = positions[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width].astype(np.float32)


class ScaledSinusoids(nn.Module):
    """Sinusoidal position embeddings times a learned number (Hua et al. 2022, FLASH).

    The number is initially 1 / sqrt(D), which gives the vectors the norm sqrt(1 / 2) at any width.

    Attributes:
      num_embeddings: Number of positions.
      features: D, the width of a vector.
      precision: Types of operands and results.
    """

    num_embeddings: int
    features: int
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, ids: Int[Array, "*lead"]) -> Float[Array, "*lead D"]:
        scale = self.param("scale", nn.initializers.constant(self.features**-0.5), ())
        table = jnp.asarray(sinusoids(self.num_embeddings, self.features))
        return (scale * jnp.take(table, ids, axis=0)).astype(self.precision.activations)


def sinusoidal(stddev: float) -> Initializer:
    """Initialises learned position embeddings as sinusoids of amplitude `2 * stddev`.

    Short runs profit from an initialisation in which neighbouring positions are similar. The
    sinusoids are about 1.5 times as large as word embeddings with standard deviation `stddev`:
    experiments/LOG.md, 2026-11-21.
    """

    def initialize(key: Array, shape: tuple[int, int], dtype=jnp.float32) -> Array:
        return jnp.asarray(2 * stddev * sinusoids(*shape), dtype)

    return initialize


INITIALIZERS: dict[str, Callable[[float], Initializer]] = {
    "normal": truncated_normal,
    "sinusoidal": sinusoidal,
}

PositionInitializer = Annotated[str, OneOf(INITIALIZERS)]


def position_initializer(name: str, stddev: float) -> Initializer:
    """Returns an initialiser of learned positions: "normal" as published, or "sinusoidal".

    Raises:
      UserError: an unknown name.
    """
    if name not in INITIALIZERS:
        raise UserError(
            f"unknown position_initializer: got {name!r}; {nearest(name, INITIALIZERS)}"
        )
    return INITIALIZERS[name](stddev)


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
