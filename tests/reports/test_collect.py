"""The runs of folders, and folders that are refused."""

import json

import pytest

from bertjax.errors import UserError
from bertjax.reports.collect import FINE_TUNING, PRETRAINING, collect
from bertjax.sweeps import features, glue_table
from bertjax.sweeps.run import Score, scores_of_suite


def test_a_pretraining_that_has_stopped(make_run):
    (run,) = collect([str(make_run("bert"))]).runs
    assert (run.kind, run.metric, run.note) == (PRETRAINING, "held_out/mlm/loss", "")
    found = run.progress
    assert (found.state, found.step, found.steps) == ("incomplete", 20, 30)
    assert (found.best, found.best_step, found.last) == (3.5, 15, 3.75)


def test_a_fine_tuning_has_a_part_for_each_seed(make_finetuning):
    (run,) = collect([str(make_finetuning("rte"))]).runs
    assert (run.kind, run.metric, run.progress.state) == (FINE_TUNING, "dev/score", "done")
    assert [seed for seed, _ in run.parts] == [0, 1, 2]
    assert (run.progress.step, run.progress.steps) == (12, 12)
    assert (run.progress.best, run.progress.spread) == (0.75, (0.5, 1.0))


def test_a_sweep_lists_runs_that_have_not_started(sweep_folder):
    first, second = collect([str(sweep_folder)]).runs
    assert (first.progress.state, second.progress.state) == ("incomplete", "waiting")
    assert second.note == "no metrics yet"
    assert second.config["optimizer.learning_rate"] == 0.5
    assert second.config["model.hidden_size"] == 8
    assert second.command == (
        f"bertjax pretrain --config rates.py --workdir {sweep_folder}/learning_rate=0.5 "
        "--config.optimizer.learning_rate=0.5"
    )


def test_a_suite_has_its_table_and_its_failed_runs(suite_folder):
    found = collect([str(suite_folder)])
    assert [run.progress.run.name for run in found.runs] == ["cola", "rte"]
    assert [run.progress.state for run in found.runs] == ["failed", "done"]
    assert found.runs[0].note == "no such luck"
    ((title, rows),) = found.tables
    assert title == f"GLUE: {suite_folder}"
    assert rows[1][:5] == ["rte", "accuracy", "62.5", "50.0 to 100.0", "3"]


def test_each_run_is_listed_once(sweep_folder):
    run = sweep_folder / "learning_rate=0.25"
    assert len(collect([str(run), str(sweep_folder), str(run)]).runs) == 2


def test_starts_of_a_run_are_read(make_run):
    folder = make_run("bert")
    start = {"command": "bertjax pretrain", "device": "TPU v4", "num_devices": 4}
    # A killed process may leave a part of a line.
    (folder / "starts.jsonl").write_text(json.dumps(start) + '\n{"command": "ber')
    assert collect([str(folder)]).runs[0].starts == [start]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no config.json in .*: expected the --workdir of a bertjax pretrain, finetune"),
        ({"model_type": "bert"}, "is a model saved by transformers, not a run"),
        ({"other": 1}, "got a config.json with other, expected the --workdir"),
    ],
)
def test_folders_that_are_no_run_are_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        collect([str(tmp_path)])


def test_a_seed_a_file_and_a_missing_folder_are_refused(make_finetuning, tmp_path):
    folder = make_finetuning("rte")
    (tmp_path / "file").write_text("")
    for path, message in [
        (folder / "seed_1", "is a seed of .*rte: expected the --workdir"),
        (tmp_path / "file", "file is a file: expected the --workdir"),
        (tmp_path / "none", "none is missing: expected the --workdir"),
    ]:
        with pytest.raises(UserError, match=message):
            collect([str(path)])


def test_tables_of_suites_are_read_as_they_were_written(tmp_path):
    glue = Score("rte", tmp_path, {"dev/accuracy": 0.5}, 0.25, 0.75, 5, {"epochs": 3}, 18)
    assert scores_of_suite(json.loads(json.dumps(glue_table.content([glue])))) == [glue]
    ner = Score("last", tmp_path, {"dev/f1": 0.5}, 0.25, 0.75, 5)
    assert features.read(json.loads(json.dumps(features.content([ner])))) == [ner]
