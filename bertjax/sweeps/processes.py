"""Run commands as child processes, a limited number at a time, each with a share of the devices.

An interrupt is forwarded to all children, which save before they exit. The runs of a suite are
`bertjax finetune` processes, each with its own folder: finished ones are skipped, stopped ones
resume.
"""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

from bertjax.errors import UserError
from bertjax.io.files import read_json
from bertjax.runs.workdir import in_use
from bertjax.runtime import device_share
from bertjax.runtime.children import Children
from bertjax.runtime.progress import ProgressDisplay
from bertjax.train import metric_records


@dataclasses.dataclass(frozen=True)
class Job:
    """A command and where it works.

    Attributes:
      name: For users.
      command: The words of the process.
      workdir: Made where it is absent.
      log: Gets what the process says, at its end.
    """

    name: str
    command: tuple[str, ...]
    workdir: pathlib.Path
    log: pathlib.Path

    def last_words(self, status: int) -> str:
        """Why it ended: the last line of its log, and the signal if that was what ended it."""
        text = self.log.read_text(encoding="utf-8", errors="replace").strip()
        last = text.splitlines()[-1] if text else "it said nothing"
        return last if status >= 0 else f"ended by {signal.Signals(-status).name}; before: {last}"


Ended = Callable[[Job, int, float], None]


def run(
    jobs: Iterable[Job],
    parallel: int,
    *,
    begun: Callable[[Job], None],
    ended: Ended,
    looked: Callable[[], None] = lambda: None,
    devices_each: int | None = None,
) -> int | None:
    """Runs jobs in their order, `parallel` at a time.

    A job whose folder another process holds, such as a run that outlived the sweep that began it,
    is one of them until that has ended, and is then begun again to see what is left to do.

    Ctrl-C and SIGTERM are passed on to those that run, and nothing more is begun; a second Ctrl-C
    kills them.

    Args:
      jobs: what to run.
      parallel: how many at a time.
      begun: is told when a job begins.
      ended: is told the job, its exit status and its seconds; not of those that were asked to end.
      looked: is called many times a second.
      devices_each: how many GPUs or TPU chips a job has at most; None for its share of them all.

    Returns:
      The signal that ended it early, or None.
    """
    waiting, running = list(jobs), {}
    parallel = max(1, min(parallel, len(waiting)))
    elsewhere = list(waiting)
    free = list(reversed(range(parallel)))
    with Children() as children:
        while running or (waiting and not children.signal):
            elsewhere = [job for job in elsewhere if job in waiting and in_use(job.workdir)]
            while _has_room(running, elsewhere, waiting, parallel) and not children.signal:
                job = next(job for job in waiting if job not in elsewhere)
                waiting.remove(job)
                process = _start(children, job, free[-1], parallel, devices_each)
                running[process] = (job, free.pop(), time.monotonic())
                begun(job)
            for process in children.poll():
                job, share, start = running.pop(process)
                free.append(share)
                if not children.signal:
                    ended(job, process.returncode, time.monotonic() - start)
            looked()
    return children.signal


def _has_room(running: Sized, elsewhere: Sized, waiting: Sized, parallel: int) -> bool:
    return len(running) + len(elsewhere) < parallel and len(waiting) > len(elsewhere)


def _start(
    children: Children, job: Job, share: int, parallel: int, devices_each: int | None
) -> subprocess.Popen:
    job.workdir.mkdir(parents=True, exist_ok=True)
    variables = device_share.environment(os.environ, share, parallel, devices_each)
    with open(job.log, "ab") as log:
        process = children.start(job.command, stdout=log, stderr=log, env=variables)
    device_share.pin_cores(process.pid, share, parallel)
    return process


_SECONDS_BETWEEN_REPORTS = 1.0

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
        signal = run(jobs, self._parallel, **watched, devices_each=1)
        if signal:
            self._display.log("stopped; the same command continues from there")
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
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_REPORTS
        work, parts = self._ended_work, [f"{self._ended} of {self._total} runs"]
        for process in self._running.values():
            fraction, text = self._progress(process)
            work += fraction * process.work
            parts.append(f"{process.name}: {text}")
        self._display.update(work / self._total_work, "; ".join(parts))

    def _progress(self, process: Process) -> tuple[float, str]:
        """The share of a run's steps that is done, and where it is."""
        seeds = metric_records.read_seeds(process.workdir)
        total = metric_records.total_steps(process.workdir, self._seeds)
        if not seeds or not total:
            return 0.0, "starting"
        each = total // self._seeds
        done = min(metric_records.newest_step(seeds), total)
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
