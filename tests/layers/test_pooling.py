"""Pooling of the tokens of a sequence, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.pooling import pool

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
