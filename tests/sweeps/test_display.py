"""Progress of runs on standard error."""

import json
import pathlib
import sys

from bertjax.sweeps import display, scheduler
from bertjax.sweeps.run import Run

RUN = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--workdir") + 1])
(folder / "config.json").write_text(json.dumps({"num_train_steps": 10}))
for seed, step in ((0, 10), (1, 5)):
    (folder / f"seed_{seed}").mkdir()
    metrics = folder / f"seed_{seed}" / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": step, "loss": 1.0}) + chr(10))
end = time.monotonic() + 60
while not (folder / "seen").exists() and time.monotonic() < end:
    time.sleep(0.01)
score = {"median": 0.5, "min": 0.4, "max": 0.6}
results = {"status": "complete", "seeds": 2, "over_seeds": {"dev/score": score}}
# Atomic as in `bertjax finetune`: the suite reads the results of other runs meanwhile.
(folder / "partial").write_text(json.dumps(results))
(folder / "partial").rename(folder / "results.json")
"""


class Recorder:
    """A display that ends the run in `folder` after half of its second seed was displayed."""

    def __init__(self, folder: pathlib.Path):
        self.seen, self.lines, self._folder = [], [], folder

    def update(self, fraction, text):
        if "step 15" in text:
            self.seen.append((fraction, text))
            (self._folder / "seen").touch()

    def log(self, line):
        self.lines.append(line)


def test_a_running_run_is_shown_with_its_step_and_counts_by_its_work(tmp_path, monkeypatch):
    done, recorder = tmp_path / "cola", Recorder(tmp_path / "rte")
    done.mkdir()
    score = {"status": "complete", "seeds": 2, "over_seeds": {}}
    (done / "results.json").write_text(json.dumps(score))
    options = {"seeds": 2}
    runs = [
        Run("cola", "finetune", options, {}, work=1.0),
        Run("rte", "finetune", options, {}, work=3.0),
    ]
    monkeypatch.setattr(scheduler, "COMMAND", (sys.executable, "-c", RUN))
    monkeypatch.setattr(
        scheduler,
        "make_display",
        lambda runs, workdir: display.LineDisplay(runs, workdir, recorder),
    )
    assert scheduler.run_all(runs, tmp_path) == []
    fraction = (1.0 + 3.0 * 15 / 20) / 4.0
    assert recorder.seen[0] == (fraction, "1 of 2 runs; rte: step 15/20")
    assert recorder.lines[0] == "[2/2] rte"
    assert recorder.lines[1].startswith("rte: dev/score 0.5000 (0.4000 to 0.6000), ")
