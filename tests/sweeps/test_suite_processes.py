"""The runs of a suite: what is shown while they run."""

import json
import pathlib
import sys

from bertjax.sweeps import glue
from bertjax.sweeps.processes import Process, Processes

RUN = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "config.json").write_text(json.dumps({"num_train_steps": 10}))
for seed, step in ((0, 10), (1, 5)):
    (folder / f"seed_{seed}").mkdir()
    metrics = folder / f"seed_{seed}" / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": step, "loss": 1.0}) + chr(10))
end = time.monotonic() + 60
while not (folder / "seen").exists() and time.monotonic() < end:
    time.sleep(0.01)
score = {"median": 0.5, "min": 0.5, "max": 0.5}
results = {"status": "complete", "seeds": 2, "over_seeds": {"dev/score": score}}
(folder / "results.json").write_text(json.dumps(results))
"""


class Display:
    """Lets the run of `folder` continue once it was shown in its second seed."""

    def __init__(self, folder: pathlib.Path):
        self.seen, self.lines, self._folder = [], [], folder

    def update(self, fraction, text):
        if "seed 2" in text:
            self.seen.append((fraction, text))
            (self._folder / "seen").touch()

    def log(self, line):
        self.lines.append(line)


def test_what_runs_is_shown_with_its_seed_and_step_and_counts_as_its_share(tmp_path):
    done, running = tmp_path / "done", tmp_path / "running"
    done.mkdir()
    (done / "results.json").write_text(json.dumps({"status": "complete", "seeds": 2}))
    display = Display(running)
    processes = Processes(works=[1.0, 3.0], seeds=2, parallel=1, display=display)
    command = [sys.executable, "-c", RUN, str(running)]
    runs = [Process("cola", done, ["false"], 1.0), Process("rte", running, command, 3.0)]
    assert processes.run(runs) == []
    share = (1.0 + 3.0 * 15 / 20) / 4.0
    assert display.seen[0] == (share, "1 of 2 runs; rte: seed 2 of 2, step 5/10")
    assert display.lines[0] == "[1/2] rte"
    assert display.lines[1].startswith("rte: dev/score 0.5000")


def test_work_is_the_size_of_the_training_examples_times_the_epochs(tmp_path):
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "train.tsv").write_text("x" * 50)
    (tmp_path / "RTE" / "dev.tsv").write_text("x" * 900)
    epochs = (("num_train_epochs", 3),)
    runs = [glue.Run(task, point, tmp_path) for task in ("rte", "qqp") for point in ((), epochs)]
    assert [glue.work(str(tmp_path), run) for run in runs] == [50, 150, 1, 3]
    assert glue.work("tfds:somewhere", runs[0]) == 1
