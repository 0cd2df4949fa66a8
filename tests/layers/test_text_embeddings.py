"""Pooling of the tokens of a sequence by hand, and MaxSim against a loop."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.text_embeddings import maxsim, pool

SEQUENCE = np.array([[[3.0, 1.0], [9.0, 4.0], [6.0, 7.0], [np.nan, 50.0]], [[5.0, 2.0]] * 4])
LENGTHS = [3, 1]


@pytest.mark.parametrize(
    ("pooling", "cls_last", "expected"),
    [
        ("mean", False, [6, 4]),
        ("weighted", False, [(3 + 2 * 9 + 3 * 6) / 6, (1 + 2 * 4 + 3 * 7) / 6]),
        ("cls", False, [3, 1]),
        ("cls", True, [6, 7]),
    ],
)
def test_padding_has_no_weight(pooling, cls_last, expected):
    mask = jnp.arange(4) < jnp.array(LENGTHS)[:, None]
    for each in (mask, jnp.broadcast_to(mask[:, None], (2, 4, 4))):
        found = pool(jnp.asarray(SEQUENCE), each, pooling, cls_last=cls_last)
        np.testing.assert_allclose(found, [expected, [5, 2]], rtol=1e-6)


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
