"""Relative attention of XLNet: content, position and segment terms, one stream or two.

Transformer-XL's attention (Dai et al. 2019, section 3.3) with XLNet's relative segment encodings
and its second stream (Yang et al. 2019, sections 2.3 and 2.5).
"""

import math

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.layers.attention import masked_softmax_attention
from bertjax.layers.dense import Dense, Precision, contract, truncated_normal
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import sinusoids_at

Streams = tuple[Array, ...]
"""The content stream [B L D] and, where tokens are predicted, the query stream [B P D]."""


@flax.struct.dataclass
class View:
    """Relation of the queries of one stream to the M keys, memory included.

    Attributes:
      mask: Whether a query sees a key.
      other_segment: Whether a key belongs to another segment than the query.
      positions: Position of each query in the sequence; None: query i at position i.
    """

    mask: Bool[Array, "B 1 Q M"]
    other_segment: Bool[Array, "B Q M"]
    positions: Int[Array, "B Q"] | None = None


@flax.struct.dataclass
class Views:
    """Inputs that all layers share.

    Attributes:
      streams: View of each stream.
      distances: Embeddings of the distances from M down to 1 - L between a query and a key.
    """

    streams: tuple[View, ...]
    distances: Float[Array, "R D"]


def distance_signals(length: int, keys: int, width: int, clamp: int) -> Float[np.ndarray, "R D"]:
    """Sinusoidal embeddings of the distances between `length` queries and `keys` keys.

    Args:
      length: L.
      keys: M, L plus the length of the memory.
      width: D.
      clamp: Longest distance, to which longer ones are clipped; 0 for no limit.
    """
    distances = np.arange(keys, -length, -1)
    return sinusoids_at(np.clip(distances, -clamp, clamp) if clamp else distances, width)


class RelativeAttention(nn.Module):
    """Relative attention of each stream to the content stream and the memory before it.

    A score is the sum of three dot products with the query, each with its own bias in place of an
    absolute position: with the key, with the embedding of the distance, and with one of two vectors
    for "same segment" and "other segment". There are no other biases, so that the output is zero
    for a query that sees no key.

    Attributes:
      num_heads: H; divides the hidden width.
      dropout_rate: Dropout of the attention weights.
      initializer_range: Initial standard deviation of all kernels, biases and encodings.
      precision: Types of operands and results; the softmax is float32.
    """

    num_heads: int
    dropout_rate: float = 0.1
    initializer_range: float = 0.02
    precision: Precision = Precision()

    @nn.compact
    def __call__(
        self, streams: Streams, views: Views, memory: Float[Array, "B T D"] | None, *, train: bool
    ) -> Streams:
        content = streams[0]
        width = content.shape[-1]
        features = (self.num_heads, width // self.num_heads)
        key_inputs = content if memory is None else jnp.concatenate([memory, content], axis=1)

        query = self._dense(features, ("embed", "heads", "kv"), "query")
        key = self._dense(features, ("embed", "heads", "kv"), "key")(key_inputs)
        value = self._dense(features, ("embed", "heads", "kv"), "value")(key_inputs)
        signals = views.distances.astype(content.dtype)
        signal = self._dense(features, ("embed", "heads", "kv"), "relative")(signals)
        output = self._dense((width,), ("heads", "kv", "embed"), "output", contracted=2)
        biases = [self._table(f"{name}_bias", features) for name in ("content", "position")]
        segments = self._table("segment_bias", features), self._table("segments", (2, *features))
        dropout = Dropout(self.dropout_rate)

        def attend(stream, view):
            heads = query(stream)
            content_bias, position_bias = (bias.astype(heads.dtype) for bias in biases)
            scores_BHQM = contract("bqhk,bmhk->bhqm", heads + content_bias, key, self.precision)
            scores_BHQM += position_products(
                heads + position_bias, signal, key.shape[1], view.positions, self.precision
            )
            scores_BHQM += segment_scores(heads, *segments, view.other_segment)
            scores_BHQM = scores_BHQM.astype(jnp.float32) / math.sqrt(features[-1])
            dropout_mask = dropout.sample_mask(scores_BHQM.shape, train=train)
            context = masked_softmax_attention(
                scores_BHQM, view.mask, dropout_mask, value, self.precision
            )
            return output(context)

        return tuple(map(attend, streams, views.streams))

    def _dense(self, features, axes, name, contracted=1):
        return Dense(
            features,
            axes,
            contracted=contracted,
            use_bias=False,
            initializer_range=self.initializer_range,
            precision=self.precision,
            name=name,
        )

    def _table(self, name: str, shape: tuple[int, ...]) -> Array:
        axes = (None, "heads", "kv")[-len(shape) :]
        normal = truncated_normal(self.initializer_range)
        return self.param(name, nn.with_logical_partitioning(normal, axes), shape)


def position_products(
    content: Float[Array, "B Q H K"],
    signal: Float[Array, "R H K"],
    others: int,
    at: Int[Array, "B Q"] | None,
    precision: Precision,
) -> Float[Array, "B H Q M"]:
    """Dot products of tokens with the embeddings of their distances to M others.

    Args:
      content: Projections of the tokens.
      signal: Projections of the embeddings of distances, as `shift_to_keys` expects them.
      others: M, the number of other positions.
      at: The positions of the tokens; None: token i at position i.
      precision: Types of operands and results.
    """
    if precision.operands != precision.activations:
        # On CPUs a matmul for each example transposes less than one for all of them. The gradient
        # of this einsum is a matmul; that of `broadcast_to`, a sum over the first axis, is slow.
        ones = jnp.ones(len(content), signal.dtype)
        signals = jnp.einsum("b,rhk->brhk", ones, signal)
        return shift_to_keys(contract("bqhk,brhk->bhqr", content, signals, precision), others, at)
    return shift_to_keys(contract("bqhk,rhk->bhqr", content, signal, precision), others, at)


def shift_to_keys(
    products: Float[Array, "B H Q R"], keys: int, positions: Int[Array, "B Q"] | None
) -> Float[Array, "B H Q M"]:
    """Selects from products of queries with all distances those of their distances to the keys.

    Distances fall from key to key and rise from query to query: a row of products with all
    distances contains those of its keys contiguously, shifted left by one for the next query.

    Args:
      products: Products for the distances from M down to 1 - L.
      keys: M.
      positions: Position of each query in the sequence; None: query i at position i.
    """
    batch, heads, queries, distances = products.shape
    if positions is None:
        # Reshaped to rows that are one shorter, each row starts one further left than the last.
        shifted = products.reshape(batch, heads, distances, queries)[:, :, 1:]
        return shifted.reshape(batch, heads, queries, distances - 1)[..., :keys]
    begins = distances - keys - positions

    def slice_row(row, begin):
        return jax.lax.dynamic_slice_in_dim(row, begin, keys, axis=1)

    return jax.vmap(jax.vmap(slice_row, (1, 0), 1))(products, begins)


def segment_scores(
    query: Float[Array, "B Q H K"],
    bias: Float[Array, "H K"],
    segments: Float[Array, "2 H K"],
    other: Bool[Array, "B Q M"],
) -> Float[Array, "B H Q M"]:
    """Dot products of queries with the encoding of "same segment" or "other segment"."""
    biased, segments = query + bias.astype(query.dtype), segments.astype(query.dtype)
    same_BHQ, other_BHQ = jnp.einsum("bqhk,shk->sbhq", biased, segments)
    return jnp.where(other[:, None], other_BHQ[..., None], same_BHQ[..., None])
