"""Similarity of vectors: cosines, and MaxSim, the score of a query and a document in ColBERT."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_MIN_NORM = 1e-12
"""Shorter vectors are not scaled to unit length, as in `torch.nn.functional.normalize`."""


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
