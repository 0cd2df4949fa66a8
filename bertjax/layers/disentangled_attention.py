"""Disentangled attention of DeBERTa: content to content, to position, and position to content.

He et al. 2021, section 3.1, with the logarithmic buckets of distances of DeBERTa-v2.

The projected embeddings of the distances are looked up once for all rows, [2L H K], and a matrix of
products with all of them, [B H L 2L] for each term, is shifted to the scores [B H L L]: twice the
memory of the scores, and no [B H L L K]. Lookups for each pair of tokens, as in the released code,
would be gathers of the size of the scores with scatters as gradients, which are slow on TPUs.
"""

import math
from collections.abc import Collection, Mapping
from typing import Annotated

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax.constraints import OneOf
from bertjax.layers.attention import masked_softmax_attention
from bertjax.layers.dense import Dense, Precision, contract
from bertjax.layers.dropout import Dropout
from bertjax.layers.masks import Mask
from bertjax.layers.relative_attention import position_products

C2P, P2C = "c2p", "p2c"

PositionTerm = Annotated[str, OneOf((C2P, P2C))]
"""Content to position, or position to content."""


@flax.struct.dataclass
class RelativePositions:
    """Inputs that all layers share.

    Attributes:
      mask: Which keys a query sees.
      embeddings: Embeddings of relative positions.
      rows: Rows of `embeddings` for the distances L, L - 1, ... -L from key to query.
      queries: Position of each query in the sequence; None: query i at position i.
    """

    mask: Mask
    embeddings: Float[Array, "R D"]
    rows: Int[np.ndarray, " S"]
    queries: Int[Array, "B Q"] | None = None

    def mask_array(self, length: int) -> Bool[Array, "#B 1 #Q M"]:
        """The mask of the queries, of a sequence of `length` tokens."""
        mask = self.mask.array()
        if self.queries is None or mask.shape[2] == 1:
            return mask
        rows = jnp.broadcast_to(mask, (len(self.queries), 1, length, length))
        return jnp.take_along_axis(rows, self.queries[:, None, :, None], axis=2)


def relative_positions(
    distances: Int[np.ndarray, " S"], buckets: int, max_distance: int
) -> Int[np.ndarray, " S"]:
    """Relative positions of distances: rows 0 to 2k - 1 of a table (equation 3).

    Without buckets, k is `max_distance`, and longer distances are clipped. With buckets, k is their
    number, and distances of more than k / 2 share logarithmic buckets up to `max_distance`, as in
    the released code of DeBERTa-v2.

    Args:
      distances: Position of the query minus position of the key.
      buckets: Number of buckets on either side; 0 or -1 for none.
      max_distance: The longest distance that is distinguished.
    """
    size, positions = max_distance, distances
    if buckets > 0:
        size, middle = buckets, buckets // 2
        far = np.maximum(np.abs(distances), middle)
        steps = np.log(far / middle) / np.log((max_distance - 1) / middle) * (middle - 1)
        logarithmic = np.sign(distances) * (np.ceil(steps) + middle)
        positions = np.where(np.abs(distances) <= middle, distances, logarithmic)
    return np.clip(positions + size, 0, 2 * size - 1).astype(np.int32)


class DisentangledAttention(nn.Module):
    """Self-attention whose scores also depend on the distance of query and key (equation 4).

    To the product of query and key it adds those of the query with the relative position of the
    key (c2p), and of the key with that of the query (p2c), and divides by the square root of K
    times the number of terms. As in the released code, and unlike equation 4, p2c reads the
    same relative position as c2p, not that of the opposite direction.

    Attributes:
      num_heads: H; divides the hidden width.
      pos_att_type: The terms in addition to content to content.
      share_att_key: Whether relative positions are projected by the query and key projections of
        the content.
      dropout_rate: Dropout of the attention weights.
      position_dropout_rate: Dropout of the embeddings of relative positions.
      initializer_range: Initial standard deviation of all kernels.
      precision: Types of operands and results; the softmax is float32.
    """

    num_heads: int
    pos_att_type: Collection[PositionTerm] = (P2C, C2P)
    share_att_key: bool = False
    dropout_rate: float = 0.1
    position_dropout_rate: float = 0.1
    initializer_range: float = 0.02
    precision: Precision = Precision()

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q D"],
        positions: RelativePositions,
        context: Float[Array, "B M D"] | None = None,
        *,
        train: bool,
    ) -> Float[Array, "B Q D"]:
        """Attends from `x` to the sequence.

        Args:
          x: The sequence; or other queries, at `positions.queries`.
          positions: Mask and relative positions.
          context: The sequence of keys and values, if it is not `x`.
          train: Whether dropout is applied.
        """
        context = x if context is None else context
        width = x.shape[-1]
        features = (self.num_heads, width // self.num_heads)
        to_query, to_key, to_value = (self._heads(features, n) for n in ("query", "key", "value"))
        query, key, value = to_query(x), to_key(context), to_value(context)

        terms = [contract("bqhk,bmhk->bhqm", query, key, self.precision)]
        dropout = Dropout(self.position_dropout_rate, by_rows=False)
        embeddings = dropout(positions.embeddings.astype(x.dtype), train=train)
        falling, rising = positions.rows[:-1], positions.rows[:0:-1]
        to_positions = {C2P: to_key, P2C: to_query}
        if not self.share_att_key:
            names = {C2P: "position_key", P2C: "position_query"}
            to_positions = {term: self._heads(features, names[term]) for term in self.pos_att_type}
        projected = self._project_positions(embeddings, to_positions)
        if C2P in self.pos_att_type:
            signal_SHK = projected[C2P][falling]
            terms.append(
                position_products(
                    query, signal_SHK, key.shape[1], positions.queries, self.precision
                )
            )
        if P2C in self.pos_att_type:
            signal_SHK = projected[P2C][rising]
            products_BHMQ = position_products(key, signal_SHK, key.shape[1], None, self.precision)
            terms.append(_rows(products_BHMQ.swapaxes(2, 3), positions.queries))
        scale = math.sqrt(features[-1] * (1 + len(self.pos_att_type)))
        scores_BHQM = sum(term.astype(jnp.float32) for term in terms) / scale
        dropout_mask = Dropout(self.dropout_rate).sample_mask(scores_BHQM.shape, train=train)
        mask = positions.mask_array(key.shape[1])
        attention_output = masked_softmax_attention(
            scores_BHQM, mask, dropout_mask, value, self.precision
        )
        return self._output(attention_output, x)

    def _project_positions(
        self, embeddings: Float[Array, "R D"], projections: Mapping[str, Dense]
    ) -> dict[str, Float[Array, "R H K"]]:
        """Keys of the relative positions for c2p, and queries for p2c."""
        return {term: project(embeddings) for term, project in projections.items()}

    def _output(self, context: Float[Array, "B Q H K"], x: Float[Array, "B Q D"]) -> Array:
        """The output projection; a subclass may also read the input `x` of the queries."""
        axes = ("heads", "kv", "embed")
        return self._dense((x.shape[-1],), axes, "output", contracted=2)(context)

    def _heads(self, features, name):
        return self._dense(features, ("embed", "heads", "kv"), name)

    def _dense(self, features, axes, name, contracted=1):
        return Dense(
            features,
            axes,
            contracted=contracted,
            initializer_range=self.initializer_range,
            precision=self.precision,
            name=name,
        )


def _rows(
    scores: Float[Array, "B H L M"], queries: Int[Array, "B Q"] | None
) -> Float[Array, "B H Q M"]:
    if queries is None:
        return scores
    return jnp.take_along_axis(scores, queries[:, None, :, None], axis=2)
