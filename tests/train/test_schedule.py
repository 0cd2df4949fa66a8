"""Learning rates of phases by hand, and refused settings."""

import numpy as np
import pytest

from bertjax import build
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.train import schedule


def two_phases(**fields):
    config = load_config("configs/bert.py:tiny")
    with config.unlocked():
        config.num_train_steps, config.data.phases = 12, ((8, 16, 4), (4, 32, 2))
        config.optimizer.update({"warmup_steps": 2, **fields})
    return config


def test_every_phase_has_its_own_learning_rate_and_warmup():
    config = two_phases(learning_rate=0.8, warmup_steps=4, restarts=((0.4, 2),))
    rate = build.make_schedule(config)
    got = [float(rate(np.int32(step))) for step in range(12)]
    first = [0.2, 0.4, 0.6, 0.8, 0.8, 0.6, 0.4, 0.2]
    np.testing.assert_allclose(got, [*first, 0.2, 0.4, 0.4, 0.2], rtol=1e-6)


def test_phases_share_one_schedule_by_default():
    config = two_phases(learning_rate=0.8)
    rate = build.make_schedule(config)
    whole = schedule.make("linear", learning_rate=0.8, num_train_steps=12, warmup_steps=2)
    expected = [whole(np.int32(step)) for step in range(13)]
    np.testing.assert_allclose([rate(np.int32(step)) for step in range(13)], expected, rtol=1e-6)


@pytest.mark.parametrize("restarts", [((0.4, 2), (0.4, 2)), ((0.4, 2, 1),), ((0.4,),)])
def test_restarts_that_do_not_match_the_phases_are_one_line(restarts):
    with pytest.raises(UserError, match=r"for each of the 2 phases of .* but the first"):
        build.make_schedule(two_phases(restarts=restarts))


def test_a_warmup_longer_than_its_phase_is_one_line():
    with pytest.raises(UserError, match="warmup_steps: got 5, expected 0 to num_train_steps=4"):
        build.make_schedule(two_phases(restarts=((0.4, 5),)))


@pytest.mark.parametrize(
    ("name", "warmup_steps", "message"),
    [
        ("linaer", 0, "no 'linaer' in bertjax/train/schedules/: did you mean 'linear'?"),
        (
            "inverse_sqrt",
            0,
            "no 'inverse_sqrt' in bertjax/train/schedules/: did you mean 'inverse_square_root'?",
        ),
        (
            "linear",
            11,
            "warmup_steps: got 11, expected 0 to num_train_steps=10; change one of them",
        ),
        (
            "linear",
            -1,
            "warmup_steps: got -1, expected 0 to num_train_steps=10; change one of them",
        ),
    ],
)
def test_invalid_settings_are_refused(name, warmup_steps, message):
    with pytest.raises(UserError) as error:
        schedule.make(name, learning_rate=1.0, num_train_steps=10, warmup_steps=warmup_steps)
    assert str(error.value) == message
