"""Results of fine-tuning: scores, the selected epoch, the median seed."""

import json

import numpy as np
import pytest
from ml_collections import ConfigDict

from bertjax.runs import results as runs_results
from bertjax.tasks.glue import dataset as glue_dataset
from bertjax.tasks.glue.table import glue_task


def a_config(rule="last", num_train_epochs=3, dataset="mnli", **changes):
    fields = {
        "seed": 4,
        "num_train_steps": 15,
        "choose_epoch": rule,
        "num_train_epochs": num_train_epochs,
    }
    task = {"name": "glue", "dataset": dataset}
    return ConfigDict(fields | {"keep_checkpoints": False, "task": task} | changes)


class Mnli:
    """A dataset with two dev and two test splits."""

    dev, test = ("dev", "dev_mismatched"), ("test", "test_mismatched")

    def __init__(self, references):
        self.references = references

    def score(self, split, predictions):
        return glue_dataset.scores(glue_task("mnli"), predictions, self.references.get(split))

    def headline(self, values):
        return {"dev/score": values["dev/accuracy"]}

    def write(self, split, predictions, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / split).write_text(str(predictions.tolist()))


REFERENCES = {"dev": np.array([0, 1, 2, 0]), "dev_mismatched": np.array([2, 2, 2, 2])}
PREDICTED = {
    "dev": [0, 1, 2, 1],
    "dev_mismatched": [2, 0, 0, 0],
    "test": [1, 1, 1, 1],
    "test_mismatched": [0, 1, 2, 0],
}


def score(folder, epoch, config=None, before=(), predicted=PREDICTED, references=REFERENCES):
    splits = []

    def predictions(name):
        splits.append(name)
        return np.array(predicted[name])

    values = runs_results.score_epoch(
        Mnli(references),
        config or a_config(),
        predictions,
        epoch=epoch,
        before=before,
        folder=folder,
    )
    return values, splits


def test_an_epoch_that_cannot_be_selected_scores_only_the_dev_splits(tmp_path):
    values, splits = score(tmp_path, epoch=2)
    assert values == {"dev/accuracy": 0.75, "dev_mismatched/accuracy": 0.25, "dev/score": 0.75}
    assert splits == ["dev", "dev_mismatched"]
    assert not list(tmp_path.iterdir())


def test_a_selected_epoch_predicts_all_splits(tmp_path):
    values, splits = score(tmp_path, epoch=3)
    assert splits == ["dev", "dev_mismatched", "test", "test_mismatched"]
    assert set(values) == {"dev/accuracy", "dev_mismatched/accuracy", "dev/score"}
    folder = tmp_path / "predictions"
    written = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
    assert written == PREDICTED


def test_the_best_epoch_so_far_writes_its_predictions(tmp_path):
    config = a_config("best")
    first, _ = score(tmp_path, 1, config)
    path = tmp_path / "predictions" / "test"
    assert path.read_text() == "[1, 1, 1, 1]"
    worse = PREDICTED | {"dev": [1, 1, 1, 1], "test": [2, 2, 2, 2]}
    _, splits = score(tmp_path, 2, config, [{"epoch": 1, "step": 1, **first}], worse)
    assert splits == ["dev", "dev_mismatched"]
    assert path.read_text() == "[1, 1, 1, 1]"
    better = PREDICTED | {"dev": [0, 1, 2, 0], "test": [2, 2, 2, 2]}
    score(tmp_path, 3, config, [{"epoch": 1, "step": 1, **first}], better)
    assert path.read_text() == "[2, 2, 2, 2]"


def test_a_test_split_with_labels_is_scored(tmp_path):
    references = REFERENCES | {"test": np.array([1, 0, 1, 1])}
    values, _ = score(tmp_path, epoch=3, references=references)
    assert values["test/accuracy"] == 0.75
    assert "test_mismatched/accuracy" not in values


EPOCHS = [
    {"epoch": 1, "step": 5, "dev/accuracy": 0.8, "dev/score": 0.8},
    {"epoch": 2, "step": 10, "dev/accuracy": 0.6, "dev/score": 0.6},
]


@pytest.mark.parametrize(("rule", "epoch", "accuracy"), [("last", 2, 0.6), ("best", 1, 0.8)])
def test_a_seed_ends_with_the_selected_epoch(tmp_path, rule, epoch, accuracy):
    (tmp_path / "checkpoints").mkdir()
    assert runs_results.read(tmp_path) is None
    result = runs_results.finish(tmp_path, a_config(rule), EPOCHS)
    assert (result["seed"], result["chosen_epoch"]) == (4, epoch)
    assert result["scores"] == {"dev/accuracy": accuracy, "dev/score": accuracy}
    assert result["epochs"] == EPOCHS
    assert runs_results.read(tmp_path) == result
    assert not (tmp_path / "checkpoints").exists()


def test_checkpoints_are_kept_on_request(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    runs_results.finish(tmp_path, a_config(keep_checkpoints=True), EPOCHS)
    assert (tmp_path / "checkpoints").exists()


def results(*scores):
    return [
        {"seed": seed, "epochs": [], "chosen_epoch": 1, "scores": {"dev/score": score}}
        for seed, score in enumerate(scores)
    ]


def test_the_median_seed():
    assert runs_results.median_seed(results(0.5)) == 0
    assert runs_results.median_seed(results(0.9, 0.1, 0.5)) == 2
    assert runs_results.median_seed(results(0.9, 0.1, 0.5, 0.6)) == 2
    assert runs_results.median_seed(results(0.5, 0.5, 0.5)) == 1


@pytest.mark.parametrize("function", ["copytree", "rmtree"])
def test_a_killed_write_leaves_no_finished_run_without_its_predictions(
    tmp_path, monkeypatch, function
):
    for seed in range(3):
        path = tmp_path / f"seed_{seed}" / "predictions" / "dev.tsv"
        path.parent.mkdir(parents=True)
        path.write_text(f"of seed {seed}")

    def kill(folder, *_, **options):
        if function == "copytree" or folder.name == "predictions":
            raise KeyboardInterrupt

    def write(*scores):
        runs_results.write(tmp_path, a_config(), results(*scores), {}, complete=True)

    write(0.5)
    with monkeypatch.context() as patch:
        patch.setattr(runs_results.shutil, function, kill)
        with pytest.raises(KeyboardInterrupt):
            write(0.9, 0.1, 0.5)
    content = json.loads((tmp_path / "results.json").read_text())
    assert (content["status"], content["seeds"]) in {("complete", 1), ("running", 3)}
    assert (tmp_path / "predictions" / "dev.tsv").read_text() == "of seed 0"
    write(0.9, 0.1, 0.5)
    assert (tmp_path / "predictions" / "dev.tsv").read_text() == "of seed 2"
    assert not (tmp_path / "predictions.part").exists()


def test_results_have_their_provenance(tmp_path):
    for seed in range(3):
        path = tmp_path / f"seed_{seed}" / "predictions" / "dev" / "MNLI-m.tsv"
        path.parent.mkdir(parents=True)
        path.write_text(f"of seed {seed}")
    stale = tmp_path / "predictions" / "dev" / "old.tsv"
    stale.parent.mkdir(parents=True)
    stale.touch()
    found = results(0.9, 0.1, 0.5)
    runs_results.write(
        tmp_path, a_config("best"), found, {"init": {"name": "runs/x"}}, complete=True
    )
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["over_seeds"]["dev/score"] == pytest.approx(
        {"median": 0.5, "mean": 0.5, "min": 0.1, "max": 0.9, "std": 0.4}
    )
    assert content["each_seed"] == found
    assert content["epoch_rule"]["name"] == "best"
    assert "chosen on the scores it reports" in content["epoch_rule"]["meaning"]
    assert content["config"]["num_train_epochs"] == 3
    assert content["init"] == {"name": "runs/x"}
    assert (content["seeds"], content["status"]) == (3, "complete")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["median"] == {"dev/score": 0.5}
    assert content["predictions"]["seed"] == 2
    assert (tmp_path / "predictions" / "dev" / "MNLI-m.tsv").read_text() == "of seed 2"
    assert not stale.exists()
