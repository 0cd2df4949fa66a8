"""The training loop and its hooks: order, resuming, stopping, reports."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import pytest

from bertjax.errors import UserError
from bertjax.runtime.interrupt import Interrupt
from bertjax.train import hooks
from bertjax.train.checkpoint.trees import fingerprint
from bertjax.train.hooks import Hook, StopWhenNotFinite
from bertjax.train.loop import train
from bertjax.train.metric_records import read_metrics
from bertjax.train.report import Report, Work

TIMES = {
    "seconds",
    "seconds_per_step",
    "tokens_per_second",
    "input_stall",
    "model_flops_utilisation",
}


class RecordingHook(Hook):
    def __init__(self, acts_every=0):
        self.entries, self._every = [], acts_every

    def on_train_begin(self, run, state, restored):
        self.entries.append(("begin", run.first_step, dict(restored)))

    def on_metrics(self, step, values):
        self.entries.append(("measured", step, values["loss"]))

    def due(self, step, ending):
        return ending is not None or bool(self._every and step % self._every == 0)

    def on_step(self, step, state):
        self.entries.append(("act", step, int(state["step"])))

    def close(self):
        self.entries.append(("close",))


class Counter(dict):
    """A state that counts steps."""

    step = property(lambda self: self["step"])


jax.tree_util.register_pytree_node(
    Counter, lambda counter: ([counter["step"]], None), lambda _, leaves: Counter(step=leaves[0])
)


@jax.jit
def count(state, batch):
    step = state["step"] + 1
    return Counter(step=step), {"loss": step * 10.0, "skipped": batch}


class Ones:
    wait_seconds = 0.0

    def __init__(self, start, stop, skipped=()):
        self._steps, self._skipped = range(start, stop), skipped

    def __iter__(self):
        return ((step, jnp.float32(step + 1 in self._skipped)) for step in self._steps)


def start(step=0):
    return Counter(step=jnp.int32(step))


def learned(workdir):
    """The records of metrics.jsonl without those that depend on the clock."""
    return [
        {name: value for name, value in record.items() if name not in TIMES}
        for record in read_metrics(workdir)
    ]


def test_metrics_are_recorded_in_order_and_before_hooks_act():
    recorder = RecordingHook(acts_every=4)
    state = train(start(2), Ones(2, 99), count, [recorder], num_train_steps=7, restored={})
    assert int(state.step) == 7
    assert recorder.entries == [
        ("begin", 2, {}),
        ("measured", 3, 30.0),
        ("measured", 4, 40.0),
        ("act", 4, 4),
        ("measured", 5, 50.0),
        ("measured", 6, 60.0),
        ("measured", 7, 70.0),
        ("act", 7, 7),
        ("close",),
    ]


def test_a_finished_run_takes_no_step():
    recorder = RecordingHook()
    assert int(train(start(7), Ones(7, 99), count, [recorder], num_train_steps=7).step) == 7
    assert recorder.entries == [("begin", 7, {}), ("close",)]


def test_no_more_than_a_few_steps_are_in_flight():
    started, seen = [], []

    class LagHook(Hook):
        def on_metrics(self, step, values):
            seen.append(len(started) - step)

    def counted(state, batch):
        started.append(1)
        return count(state, batch)

    train(start(), Ones(0, 50), counted, [LagHook()], num_train_steps=50)
    assert (seen[0], max(seen)) == (0, 2)
    assert len(seen) == 50


def test_a_batch_of_another_step_raises_an_error():
    with pytest.raises(ValueError, match="got the batch of step 5, expected that of 0"):
        train(start(), Ones(5, 9), count, [], num_train_steps=9)
    with pytest.raises(ValueError, match="batches ended after step 3 of 9"):
        train(start(), Ones(0, 3), count, [], num_train_steps=9)


def test_hooks_are_closed_whatever_happens():
    first, last = RecordingHook(), RecordingHook()

    def fails(state, batch):
        raise RuntimeError("in a step")

    with pytest.raises(RuntimeError, match="in a step"):
        train(start(), Ones(0, 9), fails, [first, last], num_train_steps=9)
    assert first.entries[-1] == last.entries[-1] == ("close",)


def test_an_interrupt_ends_the_run_after_the_step():
    interrupt, recorder = Interrupt(), RecordingHook()

    def interrupted(state, batch):
        if int(state.step) == 3:
            interrupt.signal = 15
        return count(state, batch)

    state = train(
        start(), Ones(0, 9), interrupted, [recorder], num_train_steps=9, interrupt=interrupt
    )
    assert int(state.step) == 4
    assert recorder.entries[-2:] == [("act", 4, 4), ("close",)]
    assert interrupt.stopped


def test_several_skipped_updates_in_a_row_stop_the_run_naming_the_steps():
    ones = Ones(0, 20, skipped=(2, 4, 5, 8, 9, 10, 11))
    with pytest.raises(UserError, match=r"not finite in steps 8 to 10, 3 in a row") as error:
        train(start(), ones, count, [StopWhenNotFinite(3)], num_train_steps=20)
    assert "learning_rate" in str(error.value)


def test_consecutive_skipped_updates_are_counted_across_a_restart():
    ones = Ones(10, 20, skipped=(11,))
    restored = {"StopWhenNotFinite": {"in_a_row": 2}}
    hooks = [StopWhenNotFinite(3)]
    with pytest.raises(UserError, match="steps 9 to 11"):
        train(start(10), ones, count, hooks, num_train_steps=20, restored=restored)


class Records(Hook):
    def __init__(self):
        self.all = []

    def on_record(self, step, values):
        self.all.append((step, dict(values)))


def test_reports_are_means_over_finite_steps():
    records = Records()
    report = Report(4, lambda step: Work(tokens=step, flops=0))
    ones = Ones(0, 9, skipped=(2, 9))
    train(start(), ones, count, [records, report], num_train_steps=9)
    means = [(step, values["loss"]) for step, values in records.all]
    assert means[:2] == [(4, (10 + 30 + 40) / 3), (8, (50 + 60 + 70 + 80) / 4)]
    assert means[2][0] == 9
    assert means[2][1] != means[2][1]
    assert [values["updates_skipped"] for _, values in records.all] == [1, 1, 2]
    assert [values["tokens"] for _, values in records.all] == [10, 36, 45]


def test_speed_excludes_the_first_step_and_timed_hooks(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    records = Records()
    batches = Ones(0, 6)

    class Slow(RecordingHook):
        def on_step(self, step, state):
            clock[0] += 1000

    def timed(state, batch):
        clock[0] += 500 if int(state.step) == 0 else 2
        batches.wait_seconds += 0.5
        return count(state, batch)

    report = Report(3, lambda step: Work(tokens=40, flops=60), peak_flops_per_second=300)
    train(start(), batches, timed, [records, report, Slow(acts_every=1)], num_train_steps=6)
    (_, first), (_, second) = records.all
    assert (first["seconds_per_step"], second["seconds_per_step"]) == (2, 2)
    assert second["tokens_per_second"] == 20
    assert second["model_flops_utilisation"] == 0.1
    assert (first["input_stall"], second["input_stall"]) == (0.25, 0.25)
    assert second["seconds"] == 500 + 5 * 2 + 5 * 1000


@dataclasses.dataclass
class Metric:
    """A scalar on a device, which may not be ready."""

    value: float
    ready: bool

    def is_ready(self):
        return self.ready

    def __float__(self):
        return self.value


class SlowBatches(Ones):
    """Takes half a second per batch."""

    def __iter__(self):
        for batch in super().__iter__():
            self.wait_seconds += 0.5
            yield batch


@pytest.mark.parametrize(("ready", "stall_seconds"), [(True, 3.0), (False, 1.0)])
def test_waiting_during_a_step_is_not_an_input_stall(ready, stall_seconds):
    """Before the first two steps, all waiting is: the loop waits for the first one."""

    class KeepRun(Hook):
        def on_train_begin(self, run, state, restored):
            self.run = run

    def step(state, batch):
        return count(state, batch)[0], {"loss": Metric(1.0, ready)}

    keeper = KeepRun()
    train(start(), SlowBatches(0, 6), step, [keeper], num_train_steps=6)
    assert keeper.run.stall_seconds == stall_seconds


def test_hooks_are_called_around_the_first_compilation():
    """Not for the program of a later phase, nor if the step is compiled already."""

    class Compilation(Hook):
        def on_compile_begin(self):
            found.append(("begin", hooks._num_compilations))

        def on_compile_end(self, seconds):
            found.append(("end", hooks._num_compilations))

    class TwoPhases(Ones):
        def __iter__(self):
            return iter([*Ones(0, 2), (2, jnp.int32(0)), (3, jnp.int32(0))])

    found, states, batches = [], [start(), start()], TwoPhases(0, 4)
    step = jax.jit(lambda *arguments: count.__wrapped__(*arguments))  # compiled in this test
    before = hooks._num_compilations
    for state in states:
        train(state, batches, step, [Compilation()], num_train_steps=4)
    assert found == [("begin", before), ("end", before + 1)]


def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path, run_here):
    whole, _ = run_here(tmp_path / "whole", "--steps", 23)
    for steps in (10, 15, 23):
        parts, _ = run_here(tmp_path / "parts", "--steps", steps, "--log_every", 5)
    run_here(tmp_path / "lines", "--steps", 23, "--log_every", 5)
    assert fingerprint(parts) == fingerprint(whole)
    assert learned(tmp_path / "parts")[-4:] == learned(tmp_path / "lines")[-4:]


def test_a_report_can_span_a_checkpoint(tmp_path, toy, run_here):
    uninterrupted, resumed = tmp_path / "a", tmp_path / "b"
    run_here(uninterrupted, "--steps", 12, "--log_every", 4)

    stop = toy.Interrupt
    try:
        toy.Interrupt = lambda: StopsAt(6)
        run_here(resumed, "--steps", 12, "--log_every", 4)
    finally:
        toy.Interrupt = stop
    run_here(resumed, "--steps", 12, "--log_every", 4)
    assert learned(resumed) == learned(uninterrupted)


class StopsAt(Interrupt):
    def __init__(self, step):
        super().__init__()
        self._left = step

    def should_stop(self):
        self._left -= 1
        self.stopped = self._left == 0
        return self.stopped


def test_records_of_a_killed_run_are_not_duplicated(tmp_path, run_here):
    workdir = tmp_path / "run"
    run_here(workdir, "--steps", 10, "--log_every", 2)
    before = learned(workdir)
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 12, "loss": -1.0}) + "\n")
        file.write('{"step": 14, "lo')
    run_here(workdir, "--steps", 16, "--log_every", 2)
    after = learned(workdir)
    assert after[: len(before)] == before
    steps = [record["step"] for record in after if "loss" in record]
    assert steps == [2, 4, 6, 8, 10, 12, 14, 16]
    assert all(record.get("loss") != -1.0 for record in after)


def test_nonfinite_values_are_null(tmp_path, run_here):
    run_here(tmp_path, "--steps", 4, "--log_every", 1, "--poison", 1, 3)
    losses = [record["loss"] for record in read_metrics(tmp_path) if "loss" in record]
    assert [loss is None for loss in losses] == [False, True, True, False]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


def test_plain_lines_without_a_terminal(tmp_path, run_here, toy, capfd):
    toy.train_step.clear_cache()
    run_here(tmp_path / "first", "--steps", 6)
    first, *lines = capfd.readouterr().err.splitlines()
    assert first == "compiling   the training step"
    assert re.search(r"^compiled    in \d+\.\d s$", lines[0])
    assert lines[1].startswith("step 3/6  loss ")

    run_here(tmp_path / "second", "--steps", 6)
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].startswith("step 3/6  loss ")
    assert " tokens/s  MFU " in lines[0]
    assert re.search(r"  input stall 0\.0%  ETA \d+:\d\d:\d\d$", lines[0])
    assert lines[-1].startswith("step 6/6  held_out/loss ")


def test_a_bar_in_a_terminal(tmp_path, run_here, toy, monkeypatch, capfd):
    toy.train_step.clear_cache()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    run_here(tmp_path, "--steps", 6)
    out, err = capfd.readouterr()
    assert out == ""
    (*_, last), states = err.splitlines(), re.findall("compil[a-z]+ [a-z]+", err)
    assert list(dict.fromkeys(states)) == ["compiling the", "compiled in"]
    assert "\n" not in err.rstrip("\n").partition("compiled in")[0]
    assert "compil" not in last
