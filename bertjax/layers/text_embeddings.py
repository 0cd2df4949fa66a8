"""Embeddings of texts: pooling of the vectors of tokens, cosines, and the MaxSim of ColBERT."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.layers import masks

POOLINGS = ("mean", "weighted", "cls")

_MIN_NORM = 1e-12
"""Shorter vectors are not scaled to unit length, as in `torch.nn.functional.normalize`."""


def pool(
    sequence: Float[Array, "B L D"],
    attention_mask: Bool[Array, "B L"] | Bool[Array, "B L M"],
    pooling: str,
    *,
    cls_last: bool = False,
) -> Float[Array, "B D"]:
    """Pools the tokens of every sequence, special ones included.

    Args:
      sequence: Vectors of the tokens.
      attention_mask: False for padding, which follows the text.
      pooling: `mean` (Sentence-BERT, Reimers and Gurevych 2019, section 3); `weighted`, the mean in
        which the weight of a token is its position, from 1 (SGPT, Muennighoff 2022, equation 2); or
        `cls`, the vector of [CLS].
      cls_last: Whether [CLS] is the last token, as in XLNet, instead of the first.
    """
    if pooling == "mean":
        return masks.mean(sequence, attention_mask)
    mask = masks.padding_mask(attention_mask)
    if pooling == "weighted":
        weights = jnp.where(mask, jnp.cumsum(mask, axis=1), 0).astype(sequence.dtype)[..., None]
        total = jnp.where(mask[..., None], weights * sequence, 0).sum(axis=1)
        return total / jnp.maximum(weights.sum(axis=1), 1)
    last = mask.sum(axis=1) - 1
    position = last if cls_last else jnp.zeros_like(last)
    return jnp.take_along_axis(sequence, position[:, None, None], axis=1)[:, 0]


def unit_vectors(vectors: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
    """Scales vectors to unit length; a vector of zeros stays one."""
    squared = jnp.sum(vectors**2, axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squared, _MIN_NORM**2))


def cosines(first: Float[Array, "n D"], second: Float[Array, "m D"]) -> Float[Array, "n m"]:
    """Computes the cosine of every pair of rows."""
    # The default precision of accelerators is too low for cosines divided by a temperature.
    return jnp.matmul(
        unit_vectors(first), unit_vectors(second).T, precision=jax.lax.Precision.HIGHEST
    )


def maxsim(
    queries: Float[Array, "A Q E"],
    query_mask: Bool[Array, "A Q"],
    documents: Float[Array, "C L E"],
    document_mask: Bool[Array, "C L"],
) -> Float[Array, "A C"]:
    """Sums over the tokens of a query the highest similarity to a token of a document.

    Khattab and Zaharia 2020, equation 3, for every query and every document.

    Args:
      queries: Vectors of the tokens of each query.
      query_mask: False for tokens that are not summed.
      documents: Vectors of the tokens of each document.
      document_mask: False for tokens that are not compared; each document has a True.
    """
    # The default precision of accelerators is lower, and would reorder near neighbours.
    similarity_ACQL = jnp.einsum(
        "aqe,cle->acql", queries, documents, precision=jax.lax.Precision.HIGHEST
    )
    similarity_ACQL = jnp.where(document_mask[:, None], similarity_ACQL, -jnp.inf)
    best_ACQ = similarity_ACQL.max(axis=-1)
    return jnp.where(query_mask[:, None], best_ACQ, 0.0).sum(axis=-1)
