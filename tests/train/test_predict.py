"""Predictions of every example once, in the order of the examples."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.train.evaluate import make_predict_step, predict
from bertjax.train.sharding import make_mesh


class Echo(nn.Module):
    """Predicts the first token of each example times a parameter."""

    def predict(self, batch):
        return batch["input_ids"][:, 0] * self.get_variable("params", "factor")


@pytest.fixture
def mesh():
    return make_mesh({"data": 4, "fsdp": 2, "tensor": 1, "sequence": 1})


def batches(*numbers):
    for row in numbers:
        row = np.array(row)
        yield row, {"input_ids": np.stack([row + 100, row], axis=1)}


def test_every_example_gets_its_own_prediction(mesh):
    step, params = make_predict_step(Echo(), mesh), {"factor": jnp.int32(2)}
    order = [[7, 3, 0, 10, 9, 1, 2, 8], [4, 6, 5, 11, -1, -1, -1, -1]]
    found = predict(step, params, batches(*order), 12, mesh)
    assert found.tolist() == [2 * (100 + i) for i in range(12)]


def test_a_repeated_or_missing_example_raises_an_error(mesh):
    step, params = make_predict_step(Echo(), mesh), {"factor": jnp.int32(2)}
    with pytest.raises(ValueError, match="got 8 predictions, expected one for each of 8"):
        predict(step, params, batches([0, 1, 2, 3, 4, 5, 6, 6]), 8, mesh)
    with pytest.raises(ValueError, match="got 7 predictions, expected one for each of 8"):
        predict(step, params, batches([0, 1, 2, 3, 4, 5, 6, -1]), 8, mesh)


def test_predictions_are_whole_on_every_device(mesh):
    step = make_predict_step(Echo(), mesh)
    _, batch = next(batches(range(8)))
    found = step({"factor": jnp.int32(1)}, jax.tree.map(jnp.asarray, batch))
    assert found.sharding.is_fully_replicated
