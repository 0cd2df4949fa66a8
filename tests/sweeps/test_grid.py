"""Grids of a sweep: Cartesian products and random samples."""

import pytest

from bertjax.errors import UserError
from bertjax.sweeps import grid


def test_product_of_values_and_of_runs():
    shapes = grid.zip_fields({"width": (128, 256), "heads": (2, 4)})
    assert shapes == [{"width": 128, "heads": 2}, {"width": 256, "heads": 4}]
    assert grid.product(shapes, {"seed": range(2)}) == [
        {"width": 128, "heads": 2, "seed": 0},
        {"width": 128, "heads": 2, "seed": 1},
        {"width": 256, "heads": 4, "seed": 0},
        {"width": 256, "heads": 4, "seed": 1},
    ]
    assert grid.product() == [{}]


def test_samples_depend_on_the_seed_and_are_within_bounds():
    table = {
        "rate": grid.log_uniform(1e-4, 1e-2),
        "dropout": grid.uniform(0.1, 0.2),
        "steps": grid.integers(3, 5),
        "kind": grid.choice("a", "b"),
    }
    samples = grid.random_search(200, table, seed=1)
    assert samples == grid.random_search(200, table, seed=1)
    assert samples[:20] == grid.random_search(20, table, seed=1)
    assert samples != grid.random_search(200, table, seed=2)
    assert all(1e-4 <= point["rate"] <= 1e-2 for point in samples)
    assert 60 < sum(point["rate"] < 1e-3 for point in samples) < 140, "half below the middle decade"
    assert all(0.1 <= point["dropout"] <= 0.2 for point in samples)
    assert {point["steps"] for point in samples} == {3, 4, 5}
    assert {point["kind"] for point in samples} == {"a", "b"}


def test_invalid_grids_are_refused():
    with pytest.raises(UserError, match="expected the same number for each field"):
        grid.zip_fields({"a": (1, 2), "b": (1,)})
    with pytest.raises(UserError, match="product: a is in two parts"):
        grid.product({"a": (1,)}, [{"a": 2}])
