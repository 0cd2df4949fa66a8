"""Progress of the runs of a sweep, read from their files.

A run is `done`, `running` (a process of this machine holds its folder), `failed`, `waiting`, or
`begun`: it has left something, and nothing is known of its process, since it runs elsewhere or was
stopped.
"""

import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.io.files import read_json, write_json
from bertjax.runs.workdir import in_use, read_summary
from bertjax.sweeps.plan import Run, Sweep
from bertjax.train.metric_records import newest_step, read_metrics, read_seeds, total_steps

LOG = "run.log"
_FAILURE = "failure.json"


@dataclasses.dataclass(frozen=True)
class Progress:
    """What is known of a run.

    Attributes:
      run: Which.
      workdir: Its folder.
      state: See above.
      step: Steps done, of all seeds.
      steps: Steps to do, of all seeds; None while nobody knows.
      values: What was measured of the metric that runs are compared by: (step, value), in order.
      metrics: The newest value of every metric; of a finished fine-tuning the medians over seeds.
      best: The best value; of a finished fine-tuning the median over its seeds.
      best_step: Where it was measured; None for a median.
      heard: When the run last wrote, in seconds since 1970.
      error: The last line of a run that failed.
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
    heard: float | None
    error: str

    @property
    def last(self) -> float | None:
        """The newest value of the metric."""
        return self.values[-1][1] if self.values else None

    @property
    def log(self) -> pathlib.Path:
        """What the run said."""
        return self.workdir / LOG

    def content(self) -> dict[str, Any]:
        """As plain values."""
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


def read(sweep: Sweep, workdir: pathlib.Path) -> list[Progress]:
    """How far each run is. Writes nothing."""
    return [read_run(sweep, run, workdir / run.name) for run in sweep.runs]


def read_run(sweep: Sweep, run: Run, folder: pathlib.Path) -> Progress:
    """How far one run is."""
    summary = read_summary(folder)
    done = is_done(sweep, run, summary)
    parts = _records(sweep, folder)
    step, steps = _steps(sweep, run, folder, parts)
    values = [
        (record["step"], record[sweep.metric])
        for part in parts
        for record in part
        if isinstance(record.get(sweep.metric), int | float)
    ]
    metrics = {name: value for part in parts for record in part for name, value in record.items()}
    best_step, best = _best(sweep, values)
    if done and sweep.verb == "finetune":
        metrics = summary["median"]
        best_step, best = None, metrics.get(sweep.metric)
    heard = _heard(folder)
    error = None if done else _failure(folder, heard)
    return Progress(
        run=run,
        workdir=folder,
        state="done" if done else _state(folder, error, heard),
        step=step,
        steps=steps,
        values=values,
        metrics={name: value for name, value in metrics.items() if name != "step"},
        best=best,
        best_step=best_step,
        heard=heard,
        error=error or "",
    )


def is_done(sweep: Sweep, run: Run, summary: Mapping[str, Any] | None) -> bool:
    """Whether a run has done all that this sweep asks of it."""
    if not summary or summary["status"] != "complete":
        return False
    if sweep.verb == "finetune":
        return summary["seeds"] >= sweep.options.get("seeds", 1)
    return summary["steps"] >= run.steps


def record_failure(folder: pathlib.Path, error: str, status: int) -> None:
    """Keeps what a run died of."""
    write_json(folder / _FAILURE, {"error": error, "status": status, "time": time.time()})


def forget_failure(folder: pathlib.Path) -> None:
    """For a run that is tried again."""
    (folder / _FAILURE).unlink(missing_ok=True)


def best_of(sweep: Sweep, found: Sequence[Progress]) -> Progress | None:
    """The run with the best value, among those that are finished, if there are any."""
    measured = [one for one in found if one.best is not None]
    finished = [one for one in measured if one.state == "done"]
    sign = 1 if sweep.mode == "max" else -1
    return max(finished or measured, key=lambda one: sign * one.best, default=None)


def _records(sweep: Sweep, folder: pathlib.Path) -> list[list[dict[str, Any]]]:
    """Those of each seed, or of the one run."""
    if sweep.verb == "pretrain":
        return [read_metrics(folder)]
    return read_seeds(folder)


def _steps(
    sweep: Sweep, run: Run, folder: pathlib.Path, parts: Sequence[Sequence[Mapping[str, Any]]]
) -> tuple[int, int | None]:
    step = newest_step(parts)
    if sweep.verb == "pretrain":
        return step, run.steps
    return step, total_steps(folder, sweep.options.get("seeds", 1))


def _best(sweep: Sweep, values: Sequence[tuple[int, float]]) -> tuple[int | None, float | None]:
    choose = max if sweep.mode == "max" else min
    return choose(values, key=lambda pair: pair[1], default=(None, None))


def _heard(folder: pathlib.Path) -> float | None:
    names = ("metrics.jsonl", "seed_*/metrics.jsonl", LOG, "config.json")
    found = [path.stat().st_mtime for name in names for path in folder.glob(name)]
    return max(found, default=None)


def _failure(folder: pathlib.Path, heard: float | None) -> str | None:
    """What a run died of, unless it was begun again since: elsewhere, for instance."""
    path = folder / _FAILURE
    if not path.exists() or path.stat().st_mtime < (heard or 0):
        return None
    return read_json(path)["error"]


def _state(folder: pathlib.Path, error: str | None, heard: float | None) -> str:
    if in_use(folder):
        return "running"
    if error is not None:
        return "failed"
    return "waiting" if heard is None else "begun"
