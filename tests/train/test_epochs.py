"""Evaluation by epochs: steps of evaluation, restarts, and the selected epoch."""

import pytest

from bertjax.train import epochs
from bertjax.train.hooks import Run


class Recorder:
    name = "Recorder"

    def __init__(self):
        self.records = []

    def on_record(self, step, values):
        self.records.append((step, dict(values)))


def start(hook, restored=None):
    recorder = Recorder()
    run = Run((recorder,), batches=None, num_train_steps=12, first_step=0)
    hook.on_train_begin(run, None, restored or {})
    return recorder


def test_epochs_end_after_every_example():
    seen = []

    def evaluate(state, epoch, before):
        seen.append((state, epoch, len(before)))
        return {"dev/score": epoch / 10}

    hook = epochs.EvaluateEpochs(4, evaluate)
    recorder = start(hook)
    assert [step for step in range(1, 13) if hook.due(step, None)] == [4, 8, 12]
    assert not hook.due(7, "interrupted")
    assert not hook.due(8, "interrupted")
    hook.on_step(4, "state 4")
    hook.on_step(8, "state 8")
    assert seen == [("state 4", 1, 0), ("state 8", 2, 1)]
    assert recorder.records == [(4, {"dev/score": 0.1}), (8, {"dev/score": 0.2})]
    assert hook.epochs == [
        {"epoch": 1, "step": 4, "dev/score": 0.1},
        {"epoch": 2, "step": 8, "dev/score": 0.2},
    ]


def test_results_are_restored_at_a_restart():
    hook = epochs.EvaluateEpochs(4, lambda *_: {"dev/score": 0.5})
    start(hook)
    hook.on_step(4, None)
    other = epochs.EvaluateEpochs(4, lambda *_: {"dev/score": 0.7})
    start(other, hook.state_dict())
    assert [step for step in range(4, 12) if other.is_missing(step, None)] == [8]
    other.on_step(8, None)
    assert not other.is_missing(8, None)
    assert [epoch["dev/score"] for epoch in other.epochs] == [0.5, 0.7]
    assert len(hook.epochs) == 1


def make_epochs(*scores):
    return [{"epoch": i, "step": 4 * i, "s": score} for i, score in enumerate(scores, start=1)]


def test_the_last_or_the_first_best_epoch_is_selected():
    assert epochs.choose("last", "s", make_epochs(0.3, 0.9, 0.5))["epoch"] == 3
    assert epochs.choose("best", "s", make_epochs(0.3, 0.9, 0.5))["epoch"] == 2
    assert epochs.choose("best", "s", make_epochs(0.9, 0.3, 0.9))["epoch"] == 1


@pytest.mark.parametrize("rule", ["last", "best"])
@pytest.mark.parametrize("scores", [(0.3, 0.9, 0.5), (0.9, 0.3, 0.9), (0.1, 0.2, 0.3), (0.5,) * 3])
def test_the_final_selection_is_the_last_one_during_training(rule, scores):
    found = make_epochs(*scores)
    on_the_way = [
        epoch["epoch"]
        for i, epoch in enumerate(found)
        if epochs.is_chosen_so_far(rule, "s", epoch, found[:i], is_last=i == 2)
    ]
    assert on_the_way[-1] == epochs.choose(rule, "s", found)["epoch"]


def test_a_run_without_improvement_stops_and_logs_the_reason():
    scores, lines = [0.5, 0.7, 0.6, 0.7, 0.9], []
    stopping = epochs.EarlyStopping("s", 2, lines.append)

    def start_hook(run, restored):
        hook = epochs.EvaluateEpochs(4, lambda state, epoch, _: {"s": scores[epoch - 1]}, stopping)
        hook.on_train_begin(run, None, restored)
        return hook

    run = Run((), batches=None, num_train_steps=20, first_step=0)
    hook = start_hook(run, {})
    for step in (4, 8, 12):
        hook.on_step(step, None)
        assert (run.num_train_steps, lines) == (20, [])
    hook.on_step(16, None)
    assert run.num_train_steps == 16
    assert lines == [
        "early stopping after epoch 4: s has not improved on 0.7000, that of epoch 2, "
        "for 2 epoch(s)"
    ]
    # A run that was killed before its result was written trains no further.
    resumed = Run((), batches=None, num_train_steps=20, first_step=16)
    start_hook(resumed, hook.state_dict())
    assert resumed.num_train_steps == 16
