"""Runs as child processes: order, logs, cores, dependencies, errors of the parent."""

import json
import os
import sys

import pytest

from bertjax.runtime.children import Children
from bertjax.sweeps import scheduler
from bertjax.sweeps.display import LineDisplay
from bertjax.sweeps.run import Run

RUN = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--workdir") + 1])
init = sys.argv[sys.argv.index("--init") + 1]
with open(folder.parent / "order", "a") as file:
    file.write(f"{folder.name} {init}" + chr(10))
time.sleep(0.2)
print(sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "")
score = float(sys.argv[-1].partition("=")[2])
results = {"status": "complete", "seeds": 1, "predictions": {"seed": 3}}
results["over_seeds"] = {"dev/score": {"median": score, "min": score, "max": score}}
# Atomic as in `bertjax finetune`: the suite reads the results of other runs meanwhile.
(folder / "partial").write_text(json.dumps(results))
(folder / "partial").rename(folder / "results.json")
"""


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(scheduler, "COMMAND", (sys.executable, "-c", RUN))


def make_run(name, score=0.5, **options):
    return Run(name, "finetune", {"init": "bert"}, {"score": score}, **options)


def order(tmp_path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / "order").read_text().splitlines()]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_every_process_has_its_own_cores_and_log(tmp_path):
    runs = [make_run(name) for name in "abc"]
    changes = []
    assert scheduler.run_all(runs, tmp_path, parallel=2, on_change=lambda: changes.append(1)) == []
    assert len(changes) == 3 + 1
    logs = [(tmp_path / name / "finetune.log").read_text().strip() for name in "ab"]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        assert logs == [str(cores[::2]), str(cores[1::2])]


def test_a_run_is_initialised_from_the_best_run_it_depends_on(tmp_path):
    runs = [
        make_run("last", init_from=("a", "b")),
        make_run("a", 0.25),
        make_run("b", 0.75),
        make_run("c"),
    ]
    assert scheduler.run_all(runs, tmp_path) == []
    best = str(tmp_path / "b" / "seed_3")
    assert order(tmp_path) == [["a", "bert"], ["b", "bert"], ["last", best], ["c", "bert"]]


def test_finished_runs_are_skipped_unless_seeds_are_added(tmp_path):
    (tmp_path / "a").mkdir()
    results = {"status": "complete", "seeds": 1, "over_seeds": {}}
    (tmp_path / "a" / "results.json").write_text(json.dumps(results))
    assert scheduler.run_all([make_run("a"), make_run("b")], tmp_path) == []
    assert order(tmp_path) == [["b", "bert"]]
    more = Run("a", "finetune", {"init": "bert", "seeds": 2}, {"score": 0.5})
    (failed,) = scheduler.run_all([more], tmp_path)
    assert order(tmp_path)[1:] == [["a", "bert"]]
    assert failed.state == "failed", "the stand-in always has one seed"


def test_an_error_of_the_parent_leaves_no_process_running(tmp_path, monkeypatch):
    started = []

    def start(self, *arguments, start=Children.start, **options):
        started.append(start(self, *arguments, **options))
        return started[-1]

    def log_start(self, run):
        raise OSError("no space left")

    monkeypatch.setattr(scheduler, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(Children, "start", start)
    monkeypatch.setattr(LineDisplay, "log_start", log_start)
    with pytest.raises(OSError, match="no space"):
        scheduler.run_all([make_run("a")], tmp_path)
    assert started[0].returncode is not None
