"""Read the progress of runs from their files; nothing is written, so any machine can read it.

A run is `done`, `running` (a process of this machine holds its folder), `failed`, `waiting`, or
`incomplete`: it has written files, and its process has stopped or runs on another machine.
"""

import dataclasses
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.io.files import read_json, write_json
from bertjax.runs.workdir import in_use, is_complete, read_summary
from bertjax.sweeps.run import Run, read_results
from bertjax.train.metric_records import newest_step, read_metrics, read_seeds, total_steps

_FAILURE = "failure.json"


@dataclasses.dataclass(frozen=True)
class Progress:
    """The state of a run and its metrics so far.

    Attributes:
      run: The run.
      workdir: The folder of the run.
      state: "done", "running", "failed", "waiting" or "incomplete"; see the module docstring.
      step: Number of finished steps, over all seeds.
      steps: Total number of steps, over all seeds; None while it is not known.
      values: Values of the metric by which runs are compared: (step, value), in order, without
        NaN.
      metrics: The newest value of every metric; of a finished fine-tuning the medians over seeds.
      best: The best value; of a finished fine-tuning the median over seeds.
      best_step: Step of the best value; None for a median.
      spread: Lowest and highest value over the seeds of a finished fine-tuning.
      updated: Time of the last write of the run, in seconds since 1970.
      error: The error of a failed run, in one line.
    """

    run: Run
    workdir: pathlib.Path
    state: str
    step: int
    steps: int | None
    values: Sequence[tuple[int, float]]
    metrics: Mapping[str, Any]
    best: float | None
    best_step: int | None
    spread: tuple[float, float] | None
    updated: float | None
    error: str

    @property
    def last(self) -> float | None:
        """The newest value of the metric."""
        return self.values[-1][1] if self.values else None

    @property
    def log(self) -> pathlib.Path:
        """The file with the output of the run."""
        return self.workdir / self.run.log

    @property
    def fraction(self) -> float:
        """Fraction of the steps that is finished."""
        return 1.0 if self.state == "done" else min(self.step / self.steps, 1) if self.steps else 0

    def content(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "settings": dict(self.run.settings),
            "state": self.state,
            "step": self.step,
            "steps": self.steps,
            "best": self.best,
            "best_step": self.best_step,
            "last": self.last,
            "metrics": dict(self.metrics),
            "workdir": str(self.workdir),
            **({"error": self.error, "log": str(self.log)} if self.state == "failed" else {}),
        }


def read(runs: Sequence[Run], workdir: pathlib.Path) -> list[Progress]:
    """The progress of all runs of a sweep."""
    return [read_run(run, workdir / run.name) for run in runs]


def read_run(run: Run, folder: pathlib.Path) -> Progress:
    """The progress of one run."""
    finetunes = run.verb == "finetune"
    parts = read_seeds(folder) if finetunes else [read_metrics(folder)]
    values = [
        (record["step"], record[run.metric])
        for part in parts
        for record in part
        if isinstance(record.get(run.metric), int | float) and not math.isnan(record[run.metric])
    ]
    metrics = {name: value for part in parts for record in part for name, value in record.items()}
    choose = max if run.mode == "max" else min
    best_step, best = choose(values, key=lambda pair: pair[1], default=(None, None))
    spread = None
    results = _read_results(run, folder)
    if results is not None and finetunes:
        over_seeds = results["over_seeds"]
        metrics = {name: value["median"] for name, value in over_seeds.items()}
        best_step, best = None, metrics.get(run.metric)
        if run.metric in over_seeds:
            spread = over_seeds[run.metric]["min"], over_seeds[run.metric]["max"]
    updated = _last_write(run, folder)
    error = None if results else _read_failure(folder, updated)
    return Progress(
        run=run,
        workdir=folder,
        state="done" if results else _state(folder, error, updated),
        step=newest_step(parts),
        steps=total_steps(folder, run.seeds) if run.steps is None else run.steps,
        values=values,
        metrics={name: value for name, value in metrics.items() if name != "step"},
        best=best,
        best_step=best_step,
        spread=spread,
        updated=updated,
        error=error or "",
    )


def is_done(run: Run, folder: pathlib.Path) -> bool:
    """Whether a run has finished all of its steps, or all of its seeds."""
    return _read_results(run, folder) is not None


def _read_results(run: Run, folder: pathlib.Path) -> dict[str, Any] | None:
    """Reads the results of a fine-tuning or the summary of a pretraining; None if unfinished."""
    if run.verb == "finetune":
        results = read_results(folder)
        return results if results and results["seeds"] == run.seeds else None
    summary = read_summary(folder)
    written = (summary or {}).get("config", {})
    budget = written.get("budget_seconds", 0.0)
    steps = written.get("num_train_steps", 0) if run.steps is None else run.steps
    return summary if is_complete(summary, steps, budget) else None


def record_failure(folder: pathlib.Path, error: str, status: int | None) -> None:
    """Writes the error of a failed run; `status` is its exit status, None if it was not started."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _FAILURE, {"error": error, "status": status, "time": time.time()})


def clear_failure(folder: pathlib.Path) -> None:
    """Removes the record of a failure before the run starts again."""
    (folder / _FAILURE).unlink(missing_ok=True)


def best_of(found: Sequence[Progress]) -> Progress | None:
    """The run with the best value that is a number, among the finished ones if there are any."""
    measured = [one for one in found if one.best is not None and not math.isnan(one.best)]
    finished = [one for one in measured if one.state == "done"]
    if not measured:
        return None
    choose = max if measured[0].run.mode == "max" else min
    return choose(finished or measured, key=lambda one: one.best)


def _last_write(run: Run, folder: pathlib.Path) -> float | None:
    names = ("metrics.jsonl", "seed_*/metrics.jsonl", run.log, "config.json")
    times = [path.stat().st_mtime for name in names for path in folder.glob(name)]
    return max(times, default=None)


def _read_failure(folder: pathlib.Path, updated: float | None) -> str | None:
    """The error of a run, unless it has written since, as after a restart on another machine."""
    path = folder / _FAILURE
    if not path.exists() or path.stat().st_mtime < (updated or 0):
        return None
    return read_json(path)["error"]


def _state(folder: pathlib.Path, error: str | None, updated: float | None) -> str:
    if in_use(folder):
        return "running"
    if error is not None:
        return "failed"
    return "waiting" if updated is None else "incomplete"
