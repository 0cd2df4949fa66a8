"""Held-out means over all examples."""

import jax
import numpy as np
import pytest

from bertjax.train.evaluate import evaluate
from bertjax.train.sharding import make_mesh


@pytest.fixture
def mesh():
    axes = {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1}
    return make_mesh(axes, devices=jax.devices()[:1])


def step(params, batch):
    """The loss of an example is its value times a parameter."""
    weight = batch["example_weight"]
    return {"loss": (params["times"] * (batch["value"] * weight).sum(), weight.sum())}


def test_every_example_counts_once_also_those_of_a_short_last_batch(mesh):
    values = np.array([1.0, 4.0, 2.0, 8.0, 32.0, 99.0], np.float32).reshape(2, 3)
    weights = np.array([1, 1, 1, 1, 0, 0], np.float32).reshape(2, 3)
    rows = [{"value": v, "example_weight": w} for v, w in zip(values, weights, strict=True)]
    assert evaluate(step, {"times": 6.0}, rows, mesh) == pytest.approx({"loss": 6 * 15 / 4})


def test_the_mean_without_predictions_is_zero(mesh):
    rows = [{"value": np.ones(3, np.float32), "example_weight": np.zeros(3, np.float32)}]
    assert evaluate(step, {"times": 6.0}, rows, mesh) == {"loss": 0.0}
