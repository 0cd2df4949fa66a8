"""Late interaction of token vectors: MaxSim, the score of a query and a document in ColBERT."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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
