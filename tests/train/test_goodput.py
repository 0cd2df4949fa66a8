"""Goodput: attribution of a run's time, with a fake clock."""

import json

import jax
import jax.numpy as jnp
import pytest

from bertjax.runtime.interrupt import EvaluationStoppedError
from bertjax.train import report
from bertjax.train.hooks import Evaluate, Hook
from bertjax.train.loop import train
from bertjax.train.report import Goodput

NAMES = ("steps", "input", "compile", "evaluation", "checkpoint", "lost")


class State(dict):
    step = property(lambda self: self["step"])


jax.tree_util.register_pytree_node(
    State, lambda state: ([state["step"]], None), lambda _, leaves: State(step=leaves[0])
)


class SaveCheckpoints(Hook):
    """Takes 3 seconds after every other step, and stores the hook states of step 4."""

    def __init__(self, turn):
        self._turn = turn

    def due(self, step, ending):
        return step % 2 == 0

    def on_train_begin(self, run, state, restored):
        self._run = run

    def on_step(self, step, state):
        if step == 4:
            self.kept = self._run.hook_states()
        self._turn(3)


class Batches:
    def __init__(self, turn, start, stop):
        self.wait_seconds, self._turn, self._steps = 0.0, turn, range(start, stop)

    def __iter__(self):
        for step in self._steps:
            self._turn(0.5)
            self.wait_seconds += 0.5
            yield step, jnp.float32(0)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Train for some steps.

    A step takes 2 s, and the first 40 s to compile; an evaluation 7 s, or 5 s if it is stopped.
    """
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def turn(seconds):
        clock[0] += seconds

    def go(first, last, restored=None, stopped_at=0):
        compiled = jax.jit(lambda state, batch: (State(step=state["step"] + 1), {"loss": batch}))

        def step(state, batch):
            turn(40 if int(state.step) == first else 2)
            return compiled(state, batch)

        def evaluate(state):
            is_stopped = int(state.step) == stopped_at
            turn(5 if is_stopped else 7)
            if is_stopped:
                raise EvaluationStoppedError
            return {}

        hooks = [Goodput(tmp_path), Evaluate(2, evaluate), SaveCheckpoints(turn)]
        batches = Batches(turn, first, last)
        state = State(step=jnp.int32(first))
        train(state, batches, step, hooks, num_train_steps=last, restored=restored)
        return hooks[0].newest, getattr(hooks[2], "kept", None)

    return go


def test_every_second_is_attributed(run):
    found, _ = run(0, 6)
    seconds = {name: found[f"goodput/{name}"] for name in NAMES}
    # The batches of the second step and those after it were waited for: no step ran meanwhile.
    assert seconds == {
        "steps": 5 * 2,
        "input": 6 * 0.5,
        "compile": 40,
        "evaluation": 2 * 7,
        "checkpoint": 2 * 3,
        "lost": 0,
    }
    assert found["goodput"] == pytest.approx(10 / sum(seconds.values()))
    assert report.describe_goodput(found) == (
        "goodput 13.7%: compile 40.0 s, evaluation 14.0 s, steps 10.0 s, checkpoint 6.0 s, "
        "input 3.0 s"
    )


def test_a_restart_adds_to_the_counts_and_counts_lost_time(run, tmp_path):
    """The killed process reported step 5 after 99 seconds; step 4 is the last checkpoint."""
    _, kept = run(0, 6)
    before = kept["Goodput"]
    printed = [{"step": 4, "seconds": 66.0}, {"step": 5, "seconds": 99.0}, {"step": 5, "x": 1}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in printed))
    found, _ = run(4, 8, kept)
    assert found["goodput/lost"] == 99 - before["seconds"]
    assert found["goodput/compile"] == 80
    assert found["goodput/steps"] == 3 * 2 + 3 * 2
    total = sum(found[f"goodput/{name}"] for name in NAMES)
    assert found["goodput"] == pytest.approx(found["goodput/steps"] / total)


def test_an_evaluation_that_is_stopped_and_repeated_counts_as_evaluation(run):
    _, kept = run(0, 6, stopped_at=4)
    found, _ = run(4, 8, kept)
    assert found["goodput/evaluation"] == 7 + 5 + 7 + 7
    assert found["goodput/steps"] == 3 * 2 + 3 * 2


def test_a_run_without_checkpoints_loses_all_its_time(run, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 9, "seconds": 12.5}\n')
    assert run(0, 3)[0]["goodput/lost"] == 12.5


def test_a_checkpoint_of_an_older_version_loses_nothing(run, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 9, "seconds": 12.5}\n')
    assert run(4, 6)[0]["goodput/lost"] == 0
