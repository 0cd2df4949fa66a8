"""MaxSim against a loop."""

import jax.numpy as jnp
import numpy as np

from bertjax.layers.similarity import maxsim


def test_the_best_token_of_a_document_counts_for_every_token_of_a_query():
    random = np.random.default_rng(0)
    queries, documents = random.normal(size=(2, 3, 4)), random.normal(size=(5, 7, 4))
    query_mask = np.array([[1, 1, 1], [1, 0, 1]], bool)
    lengths = (7, 1, 4, 6, 2)
    document_mask = np.arange(7) < np.array(lengths)[:, None]
    document_mask[0, 1] = False
    parts = (queries.astype(np.float32), query_mask, documents.astype(np.float32), document_mask)
    found = np.asarray(maxsim(*map(jnp.asarray, parts)))
    for a in range(2):
        for c in range(5):
            expected = 0.0
            for q in np.flatnonzero(query_mask[a]):
                expected += max(
                    queries[a, q] @ documents[c, d] for d in np.flatnonzero(document_mask[c])
                )
            np.testing.assert_allclose(found[a, c], expected, rtol=1e-4)
