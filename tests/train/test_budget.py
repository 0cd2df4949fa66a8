"""Wall-clock budgets, with a fake clock: learning rates, the end of the run, resuming."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build
from bertjax.config import load_config
from bertjax.errors import UserError
from bertjax.train import schedule, sharding
from bertjax.train.budget import Budget, _latest
from bertjax.train.hooks import Hook, Run
from bertjax.train.loop import train
from bertjax.train.step import _learning_rate
from bertjax.train.writers import Display

STEPS, SECONDS = 100, 50.0
MESH = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1})


class State(dict):
    step = property(lambda self: self["step"])


jax.tree_util.register_pytree_node(
    State, lambda state: ([state["step"]], None), lambda _, leaves: State(step=leaves[0])
)


class RecordingHook(Hook):
    def __init__(self, turn):
        self.rates, self.endings, self.seconds_left, self._turn = [], [], [], turn

    def on_train_begin(self, run, state, restored):
        self._run = run

    def on_metrics(self, step, values):
        self.rates.append(values["learning_rate"])
        self.seconds_left.append(self._run.seconds_left)

    def due(self, step, ending):
        self.endings.append(ending)
        return True

    def on_step(self, step, state):
        self._turn()


class Batches:
    wait_seconds = 0.0

    def __init__(self, budget, start):
        rows = {"input_ids": np.zeros((4, 3))}
        self._batches = ((step, budget.stamp(rows)) for step in range(start, STEPS))

    def __iter__(self):
        return self._batches


@pytest.fixture
def run(monkeypatch):
    """Train with steps of 5 seconds; returns the budget, the diary and the last state."""
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    rate = schedule.make("linear", learning_rate=1.0, num_train_steps=STEPS)

    @jax.jit
    def advance(state, batch):
        return State(step=state["step"] + 1), _learning_rate(rate, state["step"], batch)

    def step(state, batch):
        clock[0] += 5
        # On the host: a step on one device is compiled once.
        return advance(state, jax.device_get(batch))

    position = np.zeros(4, np.float32)
    for batch in (
        {"input_ids": np.zeros((4, 3))},
        {"input_ids": np.zeros((4, 3)), "schedule_step": position},
    ):
        advance(State(step=jnp.int32(0)), batch)

    def go(seconds, first=0, restored=None, last=STEPS, turn=0):
        budget, diary = (
            Budget(seconds, STEPS, MESH),
            RecordingHook(lambda: clock.append(clock.pop() + turn)),
        )
        state = train(
            State(step=jnp.int32(first)),
            Batches(budget, first),
            step,
            [budget, diary],
            num_train_steps=last,
            restored={"Budget": restored or {}},
        )
        return budget, diary, state

    return go


def test_the_schedule_ends_with_the_budget(run):
    """Ten steps spend it; the metrics of a step are read two steps later."""
    _, diary, state = run(SECONDS)
    np.testing.assert_allclose(diary.rates[:11], np.linspace(1, 0, 11), atol=1e-6)
    assert 11 <= int(state.step) == len(diary.rates) <= 15
    assert diary.endings == [None] * (len(diary.rates) - 1) + ["complete"]


def test_evaluation_and_compilation_are_not_counted(run):
    _, diary, _ = run(SECONDS, turn=100)
    np.testing.assert_allclose(diary.rates[:11], np.linspace(1, 0, 11), atol=1e-6)
    jax.clear_caches()
    _, diary, _ = run(SECONDS)
    # The first step compiled, in its 5 seconds.
    np.testing.assert_allclose(diary.rates[:12], [1.0, *np.linspace(1, 0, 11)], atol=1e-6)


def test_a_resumed_run_keeps_the_time_spent(run):
    budget, before, state = run(SECONDS, last=4)
    assert budget.state_dict() == {"seconds": 20.0}
    _, after, _ = run(SECONDS, first=int(state.step), restored=budget.state_dict())
    np.testing.assert_allclose([*before.rates, *after.rates][:11], np.linspace(1, 0, 11), atol=1e-6)
    assert before.seconds_left[-1] == 30.0
    assert after.seconds_left[-1] == 0.0


def test_a_run_that_has_spent_its_budget_takes_no_further_step(run):
    budget, _, state = run(SECONDS)
    _, diary, resumed = run(SECONDS, first=int(state.step), restored=budget.state_dict())
    assert diary.rates == []
    assert int(resumed.step) == int(state.step)


def test_progress_shows_the_steps_and_the_time_that_the_budget_allows(capsys):
    display, run = Display(), Run((), None, num_train_steps=1_000_000, first_step=0)
    display.on_train_begin(run, None, {})
    run.seconds_left = 30.0
    display.on_record(40, {"loss": 1.0, "seconds_per_step": 0.5})
    display.on_record(40, {"held_out/loss": 2.0})
    assert capsys.readouterr().err.splitlines() == [
        "step  40/100  loss 1.0000  ETA 0:00:30",
        "step  40/100  held_out/loss 2.0000",
    ]


def test_without_a_budget_the_schedule_follows_the_steps(run):
    budget, diary, state = run(0.0, last=7)
    np.testing.assert_allclose(diary.rates, 1 - np.arange(7) / STEPS, rtol=1e-6)
    assert int(state.step) == 7
    assert budget.state_dict() == {}


def test_the_latest_clock_of_all_hosts_counts():
    rate = schedule.make("linear", learning_rate=1.0, num_train_steps=STEPS)
    batch = {"schedule_step": _latest(jnp.asarray([25.0, 75.0, 25.0]), 4)}
    found = jax.jit(lambda step, batch: _learning_rate(rate, step, batch))(3, batch)
    assert found == {"learning_rate": pytest.approx(0.25), "schedule_step": 75.0}


def test_a_budget_with_phases_is_one_line():
    config = load_config("configs/bert.py:tiny", {"budget_seconds": 60.0})
    with pytest.raises(UserError, match=r"got 60.0 with 2 phases, expected one, since phases are"):
        build.check(config)
