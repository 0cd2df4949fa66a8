"""The runs of a suite: a `bertjax finetune` each, in a process and a folder of its own.

They go one after the other or side by side. What is finished is not done again, and what was
stopped goes on.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from bertjax import fine_tuning_progress, side_by_side
from bertjax.errors import UserError
from bertjax.progress_display import ProgressDisplay
from bertjax.side_by_side import Job
from bertjax.train.files import read_json

_SECONDS_BETWEEN_LOOKS = 1.0

LOG = "finetune.log"
"""In a run's folder: what it said."""


@dataclasses.dataclass(frozen=True)
class Process:
    """A run as it is started.

    Attributes:
      name: What it is called where its score is told.
      workdir: Its own.
      command: The words of the command line, the program first.
      work: How long it takes, compared with the other runs of its suite.
    """

    name: str
    workdir: pathlib.Path
    command: Sequence[str]
    work: float = 1.0


def command(**options: Any) -> list[str]:
    """The words of a `bertjax finetune` with these options."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "bertjax", "finetune", *words]


def finished(workdir: pathlib.Path) -> dict[str, Any] | None:
    """What came out of a run, once all its seeds are done."""
    path = workdir / "results.json"
    found = read_json(path) if path.exists() else None
    return found if found and found["status"] == "complete" else None


def check_all_done(failed: Sequence[pathlib.Path], total: int) -> None:
    """Refuses to call a suite done in which runs failed.

    Raises:
      UserError: naming the logs of those that did.
    """
    if failed:
        names = ", ".join(str(workdir / LOG) for workdir in failed)
        raise UserError(f"{len(failed)} of {total} runs failed, the others are done: {names}")


class Processes:
    """Starts the runs of a suite and waits for them."""

    def __init__(
        self, *, works: Sequence[float], seeds: int, parallel: int, display: ProgressDisplay
    ):
        """See `run`.

        Args:
          works: The `work` of every run of the whole suite.
          seeds: Of each of them.
          parallel: How many side by side: each with one GPU, or its share of the cores.
          display: Shows how far the suite is.
        """
        self._total, self._total_work = len(works), sum(works)
        self._seeds, self._parallel, self._display = seeds, parallel, display
        self._started = self._ended = 0
        self._ended_work = 0.0
        self._running: dict[pathlib.Path, Process] = {}
        self._next_look = 0.0

    def run(self, wanted: Sequence[Process]) -> list[pathlib.Path]:
        """Runs what is not finished; returns the folders of what failed.

        Raises:
          SystemExit: it was interrupted; the runs were asked to save and to end.
        """
        failed, jobs = [], {}
        for each in wanted:
            if self._is_done(each):
                self._count(each)
            else:
                jobs[_job(each)] = each

        def begun(job: Job) -> None:
            self._running[job.workdir] = jobs[job]
            self._started += 1
            self._display.log(f"[{self._started}/{self._total}] {job.name}")

        def ended(job: Job, status: int, seconds: float) -> None:
            self._count(self._running.pop(job.workdir))
            if not self._told(job, status, seconds):
                failed.append(job.workdir)

        watched = {"begun": begun, "ended": ended, "looked": self._looked}
        signal = side_by_side.run(jobs, self._parallel, **watched, devices_each=1)
        if signal:
            self._display.log("stopped; the same command goes on from there")
            raise SystemExit(128 + signal)
        return failed

    def _is_done(self, wanted: Process) -> bool:
        done = finished(wanted.workdir)
        return bool(done) and done["seeds"] == self._seeds

    def _count(self, process: Process) -> None:
        self._ended += 1
        self._ended_work += process.work

    def _looked(self) -> None:
        """Shows which runs are done, and how far those are that run."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        work, parts = self._ended_work, [f"{self._ended} of {self._total} runs"]
        for process in self._running.values():
            fraction, text = self._progress(process)
            work += fraction * process.work
            parts.append(f"{process.name}: {text}")
        self._display.update(work / self._total_work, "; ".join(parts))

    def _progress(self, process: Process) -> tuple[float, str]:
        """The share of a run's steps that is done, and where it is."""
        seeds = fine_tuning_progress.records(process.workdir)
        total = fine_tuning_progress.total_steps(process.workdir, self._seeds)
        if not seeds or not total:
            return 0.0, "starting"
        each = total // self._seeds
        done = min(fine_tuning_progress.newest_step(seeds), total)
        at = f"step {seeds[-1][-1]['step']:,}/{each:,}" if seeds[-1] else "compiling"
        return done / total, f"seed {len(seeds)} of {self._seeds}, {at}"

    def _told(self, job: Job, status: int, seconds: float) -> bool:
        """Says how a run ended: whether it is finished."""
        results = finished(job.workdir) if status == 0 else None
        if results is None:
            self._display.log(f"{job.name}: failed ({job.last_words(status)})")
            return False
        score = results["over_seeds"]["dev/score"]
        spread = f"{score['median']:.4f} ({score['min']:.4f} to {score['max']:.4f})"
        self._display.log(f"{job.name}: dev/score {spread}, {seconds:.0f} s")
        return True


def _job(wanted: Process) -> Job:
    return Job(wanted.name, tuple(wanted.command), wanted.workdir, wanted.workdir / LOG)
