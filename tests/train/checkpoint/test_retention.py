"""Retention of checkpoints: newest and best."""

import math

import pytest

from bertjax.errors import UserError
from bertjax.train.checkpoint.folder import Retention, rank_steps, steps_to_remove

METRICS = {
    100: {"loss": 3.0, "accuracy": 0.2},
    200: {"loss": 1.0, "accuracy": 0.9},
    300: {"loss": 2.0},
    400: {},
    500: {"loss": math.nan, "accuracy": 0.9},
}


def test_ranked_by_direction_older_first_among_equals_and_without_the_unmeasured():
    assert rank_steps(METRICS, "loss", "min") == [200, 300, 100]
    assert rank_steps(METRICS, "accuracy", "max") == [200, 500, 100]
    assert rank_steps(METRICS, "unknown", "min") == []


@pytest.mark.parametrize(
    ("latest", "best", "gone"),
    [(1, 0, [100, 200, 300, 400]), (1, 1, [100, 300, 400]), (2, 2, [100]), (9, 0, [])],
)
def test_newest_and_best_are_kept(latest, best, gone):
    assert steps_to_remove(METRICS, Retention(latest, best, "loss", "min")) == gone


def test_invalid_settings_are_refused():
    with pytest.raises(UserError, match="best_mode: got 'least'"):
        Retention(mode="least")
    with pytest.raises(UserError, match="keep_checkpoints: got 0"):
        Retention(latest=0)
