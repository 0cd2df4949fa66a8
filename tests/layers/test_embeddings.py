"""Embedding tables: lookup and logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.dense import PRECISIONS
from bertjax.layers.embeddings import Embedding


def test_rows_and_scores(random):
    module, table = Embedding(11, 5, ("vocab", "embed")), random(11, 5)
    variables = {"params": {"embedding": table}}
    ids = jnp.array([[0, 10, 3], [3, 3, 7]])
    np.testing.assert_array_equal(module.apply(variables, ids), table[ids])
    hidden = random(2, 3, 5)
    scores = module.apply(variables, hidden, method="attend")
    assert scores.shape == (2, 3, 11)
    np.testing.assert_allclose(
        scores, np.einsum("ble,ve->blv", hidden, table), rtol=1e-5, atol=1e-6
    )


def test_gradients_of_a_row_used_twice_are_summed(random):
    module, table, probe = Embedding(11, 5, ("vocab", "embed")), random(11, 5), random(3, 5)

    def read(table):
        return jnp.vdot(module.apply({"params": {"embedding": table}}, jnp.array([4, 9, 4])), probe)

    gradient = jax.grad(read)(table)
    expected = np.zeros((11, 5), np.float32)
    expected[4], expected[9] = probe[0] + probe[2], probe[1]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.parametrize("name", PRECISIONS)
def test_types(name):
    module = Embedding(11, 5, ("vocab", "embed"), precision=PRECISIONS[name])
    rows, variables = module.init_with_output(jax.random.key(0), jnp.array([1, 2]))
    assert variables["params"]["embedding"].names == ("vocab", "embed")
    assert nn.meta.unbox(variables)["params"]["embedding"].dtype == jnp.float32
    assert rows.dtype == PRECISIONS[name].activations
    scores = module.apply(nn.meta.unbox(variables), rows, method="attend")
    assert scores.dtype == PRECISIONS[name].activations


def test_an_id_outside_the_table_gives_nan(random):
    rows = Embedding(11, 5, ("vocab", "embed")).apply(
        {"params": {"embedding": random(11, 5)}}, jnp.array([10, 11])
    )
    assert np.all(np.isfinite(rows[0]))
    assert np.all(np.isnan(rows[1]))
