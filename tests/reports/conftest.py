"""Stored runs of reports: folders as runs, sweeps and suites write them."""

import json
import pathlib

import pytest

from bertjax.io.files import write_json
from bertjax.metrics import classification
from bertjax.sweeps import glue_table, plan
from bertjax.sweeps.run import Run, Score

CONFIG = {
    "num_train_steps": 30,
    "best_metric": "held_out/mlm/loss",
    "best_mode": "min",
    "model": {"name": "bert", "hidden_size": 8},
    "optimizer": {"learning_rate": 1e-3},
}
RECORDS = [
    {"step": 10, "loss": 5.0, "mlm/loss": 4.0, "tokens": 100, "seconds": 36.0},
    {"step": 15, "held_out/mlm/loss": 3.5},
    {"step": 20, "loss": None, "mlm/loss": 2.0, "tokens": 300, "seconds": 72.0},
    {"step": 20, "held_out/mlm/loss": 3.75},
    {"step": 20, "goodput": 0.5},
]
SCORES = {"dev/score": [0.75, 0.5, 1.0], "dev/accuracy": [0.625, 0.5, 0.875]}


def write_lines(path: pathlib.Path, records) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def make_run(tmp_path):
    """Writes a pretraining run that has stopped after 20 of 30 steps."""

    def make(name: str, *, learning_rate: float = 1e-3, records=RECORDS, **config) -> pathlib.Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        fields = CONFIG | {"optimizer": {"learning_rate": learning_rate}} | config
        write_json(folder / "config.json", fields)
        write_lines(folder / "metrics.jsonl", records)
        return folder

    return make


@pytest.fixture
def make_finetuning(tmp_path):
    """Writes a finished fine-tuning with three seeds."""

    def make(name: str, task: str = "rte") -> pathlib.Path:
        folder = tmp_path / name
        config = {"num_train_steps": 4, "task": {"name": "glue", "dataset": task}, "model": {}}
        each = [
            {"seed": seed, "scores": {name: values[seed] for name, values in SCORES.items()}}
            for seed in range(3)
        ]
        for seed in range(3):
            (folder / f"seed_{seed}").mkdir(parents=True)
            records = [
                {"step": 4, "loss": 0.5, "glue/accuracy": 0.9, "tokens": 40, "seconds": 2.0},
                {"step": 4, "dev/accuracy": SCORES["dev/accuracy"][seed]},
            ]
            write_lines(folder / f"seed_{seed}" / "metrics.jsonl", records)
        write_json(folder / "config.json", config)
        results = {
            "status": "complete",
            "seeds": 3,
            "task": task,
            "init": {"name": "runs/bert"},
            "epoch_rule": {"name": "last", "meaning": "the last epoch of every seed"},
            "over_seeds": {
                name: classification.summarize(values) for name, values in SCORES.items()
            },
            "each_seed": each,
        }
        write_json(folder / "results.json", results)
        return folder

    return make


@pytest.fixture
def sweep_folder(tmp_path, make_run):
    """A sweep of two runs, of which the second has not started."""
    folder = tmp_path / "rates"
    runs = tuple(
        Run(
            name=f"learning_rate={rate}",
            verb="pretrain",
            options={"config": "rates.py"},
            settings={"optimizer.learning_rate": rate},
            steps=30,
            metric="held_out/mlm/loss",
            mode="min",
        )
        for rate in (0.25, 0.5)
    )
    make_run("rates/learning_rate=0.25", learning_rate=0.25)
    sweep = plan.Sweep("rates.py", "pretrain", {}, (), CONFIG, runs, "held_out/mlm/loss", "min")
    write_json(folder / "config.json", plan.record(sweep))
    return folder


@pytest.fixture
def suite_folder(tmp_path, make_finetuning):
    """A GLUE suite with one of two tasks finished; the other failed before it had a config."""
    folder = tmp_path / "suite"
    rte = make_finetuning("suite/rte")
    (folder / "cola").mkdir()
    write_json(folder / "cola" / "failure.json", {"error": "no such luck", "status": 2})
    write_json(folder / "config.json", {"glue": {"init": "runs/bert", "recipe": ""}})
    medians = {"dev/score": 0.75, "dev/accuracy": 0.625}
    score = Score("rte", rte, medians, 0.5, 1.0, 3)
    write_json(folder / "results.json", glue_table.content([score]) | {"missing_of_server": []})
    return folder
