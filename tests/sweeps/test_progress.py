"""Progress of runs of a sweep, read from their files."""

import json

import pytest

from bertjax.sweeps import progress, table
from bertjax.sweeps.run import Run

METRIC = "held_out/mlm/loss"


@pytest.mark.parametrize(("mode", "best"), [("min", "b"), ("max", "c")])
def test_a_run_without_a_number_is_not_the_best(tmp_path, mode, best):
    losses = {"a": (float("nan"), float("nan")), "b": (float("nan"), 2.0), "c": (3.0, 4.0)}
    for name, values in losses.items():
        (tmp_path / name).mkdir()
        records = [{"step": step, METRIC: loss} for step, loss in enumerate(values, 1)]
        lines = [json.dumps(record) + "\n" for record in records]
        (tmp_path / name / "metrics.jsonl").write_text("".join(lines))
    runs = [Run(name, "pretrain", {}, {}, steps=9, metric=METRIC, mode=mode) for name in losses]
    found = progress.read(runs, tmp_path)
    assert progress.best_of(found).run.name == best
    assert [one.best is None for one in found] == [True, False, False]
    marked = [line.split()[0] for line in table.runs_text(found).splitlines() if "*" in line]
    assert marked == [best]
    assert progress.best_of(found[:1]) is None


def test_a_pretraining_of_epochs_has_the_steps_of_its_written_config(tmp_path):
    run = Run("a", "pretrain", {}, {}, metric=METRIC)
    config = {"num_train_steps": 7}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert progress.read_run(run, tmp_path).steps == 7
    summary = {"status": "complete", "config": config}
    for steps, done in ((6, False), (7, True)):
        (tmp_path / "summary.json").write_text(json.dumps(summary | {"steps": steps}))
        assert progress.is_done(run, tmp_path) == done
