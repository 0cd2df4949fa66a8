"""Learning rates of every schedule at the relevant steps, by hand."""

import numpy as np
import pytest

from bertjax import build
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.train import schedule

KINDS = ["linear", "polynomial", "cosine", "constant", "inverse_square_root"]
KINDS += ["warmup_stable_decay", "one_cycle"]


def rates(name, steps, **fields):
    rate = schedule.make(name, **({"learning_rate": 0.8, "num_train_steps": steps} | fields))
    return np.array([rate(np.int32(step)) for step in range(steps + 1)], np.float64)


@pytest.mark.parametrize("name", KINDS)
def test_warmup_starts_with_the_first_step_and_ends_at_the_peak(name):
    got = rates(name, 12, warmup_steps=4)
    np.testing.assert_allclose(got[:4], [0.2, 0.4, 0.6, 0.8], rtol=1e-6)
    assert got[4] == pytest.approx(0.8)
    assert got.max() == pytest.approx(0.8)


@pytest.mark.parametrize("name", KINDS)
def test_a_warmup_of_one_step_or_of_all(name):
    assert rates(name, 5, warmup_steps=1)[0] == pytest.approx(0.8)
    np.testing.assert_allclose(rates(name, 4, warmup_steps=4)[:4], [0.2, 0.4, 0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("linear", {}, [0.8, 0.6, 0.4, 0.2, 0.0]),
        ("linear", {"end_learning_rate": 0.4}, [0.8, 0.7, 0.6, 0.5, 0.4]),
        ("polynomial", {"power": 2.0}, [0.8, 0.45, 0.2, 0.05, 0.0]),
        ("polynomial", {"power": 2.0, "end_learning_rate": 0.4}, [0.8, 0.625, 0.5, 0.425, 0.4]),
        ("polynomial", {"power": 1.0}, [0.8, 0.6, 0.4, 0.2, 0.0]),
        ("cosine", {}, [0.8, 0.4 + 0.4 * 0.5**0.5, 0.4, 0.4 - 0.4 * 0.5**0.5, 0.0]),
        ("cosine", {"end_learning_rate": 0.4}, [0.8, 0.6 + 0.2 * 0.5**0.5, 0.6,
                                                0.6 - 0.2 * 0.5**0.5, 0.4]),
        ("constant", {}, [0.8, 0.8, 0.8, 0.8, 0.8]),
        ("warmup_stable_decay", {"decay_steps": 2}, [0.8, 0.8, 0.8, 0.8 * (1 - 0.5**0.5), 0.0]),
        ("warmup_stable_decay", {"decay_steps": 4, "decay_shape": "linear",
                                 "end_learning_rate": 0.4}, [0.8, 0.7, 0.6, 0.5, 0.4]),
        ("one_cycle", {"annihilation_share": 0.5, "cycle_end": 0.25}, [0.8, 0.5, 0.2, 0.1, 0.0]),
        ("one_cycle", {"annihilation_share": 0.5, "end_learning_rate": 0.4},
         [0.8, 0.6, 0.4, 0.4, 0.4]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_decays(name, fields, expected, warmup_steps):
    got = rates(name, warmup_steps + 4, warmup_steps=warmup_steps, **fields)
    np.testing.assert_allclose(got[warmup_steps:], expected, rtol=1e-5, atol=1e-7)


def test_the_share_of_a_decay_is_of_the_whole_run():
    """Of 20 steps, the last 5 decay; the checkpoint of step 15 is that of a constant rate."""
    fields = {"warmup_steps": 4, "decay_share": 0.25, "decay_shape": "linear"}
    got = rates("warmup_stable_decay", 20, **fields)
    np.testing.assert_allclose(got[4:16], 0.8, rtol=1e-6)
    np.testing.assert_allclose(got[16:], [0.64, 0.48, 0.32, 0.16, 0.0], rtol=1e-5, atol=1e-7)


def test_a_decay_longer_than_the_run_is_one_line():
    overrides = {"schedule": "warmup_stable_decay", "decay_steps": 90, "warmup_steps": 20}
    config = load_config(
        "configs/bert.py:tiny",
        {
            "num_train_steps": 100,
            "data.phases": (),
            **{f"optimizer.{k}": v for k, v in overrides.items()},
        },
    )
    message = "decay_steps: got a decay of 90 steps, expected at most the 80 after the warmup"
    with pytest.raises(UserError, match=message):
        build.check(config)


def test_inverse_square_root_scales_with_the_warmup():
    got = rates("inverse_square_root", 100, warmup_steps=9)
    # Vaswani et al.: proportional to step ** -0.5 from the end of the warmup on.
    np.testing.assert_allclose(got[9:], 0.8 * np.sqrt(9 / np.arange(9, 101)), rtol=1e-5)
    plain = rates("inverse_square_root", 8)
    np.testing.assert_allclose(plain, 0.8 / np.sqrt(np.arange(1, 10)), rtol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_a_peak_of_zero(name):
    assert np.all(rates(name, 6, learning_rate=0.0, warmup_steps=2) == 0)
