"""Evaluations that a signal stops are repeated when the run resumes: invariant 3."""

import pytest

from bertjax.errors import UserError
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.hooks import Evaluate
from bertjax.train.metric_records import read_metrics

WORDS = ("--steps", 12, "--eval_every", 4, "--log_every", 2, "--keep", 9, "--checkpoint_every")


@pytest.fixture(scope="module")
def uninterrupted(toy, tmp_path_factory):
    """Folders of runs with three evaluations of four batches each, by `checkpoint_every`."""
    folders = {}
    for every in (4, 5):
        folders[every] = tmp_path_factory.mktemp("uninterrupted")
        toy.run(folders[every], toy.parse([str(folders[every]), *map(str, WORDS), str(every)]))
    return folders


@pytest.fixture
def run_until(toy, run_here, stop_after, monkeypatch):
    """Run the toy until it has asked for a stop so often: `run_until(calls, workdir, ...)`."""

    def run(calls, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(toy, "Interrupt", lambda: stop_after(calls))
            state, interrupt = run_here(*arguments)
        assert interrupt.stopped
        return int(state.step)

    return run


@pytest.fixture
def held_out_batches(toy, monkeypatch):
    """The held-out batches that are evaluated."""
    seen = []

    def batch_of(step, make=toy.batch_of):
        if step in toy.HELD_OUT_BATCHES:
            seen.append(step)
        return make(step)

    monkeypatch.setattr(toy, "batch_of", batch_of)
    return seen


def losses(workdir):
    names = ("step", "loss", "held_out/loss")
    return [
        {name: record[name] for name in names if name in record} for record in read_metrics(workdir)
    ]


def ranking(workdir):
    """The checkpoints with a held-out loss, best first, and their losses."""
    found = checkpoint_folder.metrics(workdir / "checkpoints")
    best = checkpoint_folder.rank_steps(found, "held_out/loss", "min")
    return [(step, found[step]["held_out/loss"]) for step in best]


@pytest.mark.parametrize("checkpoint_every", [4, 5])
@pytest.mark.parametrize(
    ("stops", "step", "stopped_after"),
    [
        # The number of steps and evaluation batches until each stop.
        pytest.param([4], 4, 0, id="after the step that precedes the first evaluation"),
        pytest.param([4 + 2], 4, 1, id="in the first evaluation"),
        pytest.param([4 + 4, 3], 4, 3 + 2, id="in the first evaluation, and when it is repeated"),
        pytest.param([11 + 8 + 3], 12, 8 + 2, id="in the last evaluation"),
    ],
)
def test_a_run_that_is_stopped_in_an_evaluation_equals_an_uninterrupted_one(
    tmp_path,
    run_here,
    run_until,
    uninterrupted,
    held_out_batches,
    stops,
    step,
    stopped_after,
    checkpoint_every,
):
    for calls in stops:
        assert run_until(calls, tmp_path, *WORDS, checkpoint_every) == step
        assert checkpoint_folder.steps(tmp_path / "checkpoints")[-1] == step
    assert len(held_out_batches) == stopped_after
    run_here(tmp_path, *WORDS, checkpoint_every)
    assert losses(tmp_path) == losses(uninterrupted[checkpoint_every])
    assert ranking(tmp_path) == ranking(uninterrupted[checkpoint_every])


def test_a_run_that_is_killed_after_a_repeated_evaluation_records_it_once(
    tmp_path, run_here, run_until, uninterrupted
):
    run_until(4 + 2, tmp_path, *WORDS, 5)
    # No checkpoint is saved between the evaluation and the steps that fail.
    with pytest.raises(UserError, match="steps 5 to 7"):
        run_here(tmp_path, *WORDS, 50, "--poison", 4, 9)
    assert "held_out/loss" in losses(tmp_path)[-2]
    run_here(tmp_path, *WORDS, 5)
    assert losses(tmp_path) == losses(uninterrupted[5])


def test_an_evaluation_is_not_started_when_the_run_is_interrupted():
    hook = Evaluate(4, lambda state: {})
    endings = (None, "complete", "interrupted")
    assert [hook.due(8, ending) for ending in endings] == [True, True, False]
    assert [hook.due(7, ending) for ending in endings] == [False, True, False]
