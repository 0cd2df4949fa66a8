"""The runs of a suite: a `bertjax finetune` each, in a process and a folder of its own.

They go one after the other or side by side. What is finished is not done again, and what was
stopped goes on.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bertjax import side_by_side
from bertjax.errors import UserError
from bertjax.side_by_side import Job
from bertjax.train.files import read_json

LOG = "finetune.log"
"""In a run's folder: what it said."""


@dataclasses.dataclass(frozen=True)
class Process:
    """A run as it is started.

    Attributes:
      name: What it is called where its score is told.
      workdir: Its own.
      command: The words of the command line, the program first.
    """

    name: str
    workdir: pathlib.Path
    command: Sequence[str]


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

    def __init__(self, *, total: int, seeds: int, parallel: int, say: Callable[[str], None]):
        """See `run`.

        Args:
          total: Runs of the whole suite.
          seeds: Of each of them.
          parallel: How many side by side: each with one GPU, or its share of the cores.
          say: Shows a line.
        """
        self._total, self._seeds, self._parallel, self._say = total, seeds, parallel, say
        self._started = 0

    def run(self, wanted: Sequence[Process]) -> list[pathlib.Path]:
        """Runs what is not finished; returns the folders of what failed.

        Raises:
          SystemExit: it was interrupted; the runs were asked to save and to end.
        """
        failed = []

        def ended(job: Job, status: int, seconds: float) -> None:
            if not self._told(job, status, seconds):
                failed.append(job.workdir)

        signal = side_by_side.run(
            [_job(each) for each in wanted if not self._is_done(each)],
            self._parallel,
            begun=self._begun,
            ended=ended,
            devices_each=1,
        )
        if signal:
            self._say("stopped; the same command goes on from there")
            raise SystemExit(128 + signal)
        return failed

    def _is_done(self, wanted: Process) -> bool:
        done = finished(wanted.workdir)
        return bool(done) and done["seeds"] == self._seeds

    def _begun(self, job: Job) -> None:
        self._started += 1
        self._say(f"[{self._started}/{self._total}] {job.name}")

    def _told(self, job: Job, status: int, seconds: float) -> bool:
        """Says how a run ended: whether it is finished."""
        results = finished(job.workdir) if status == 0 else None
        if results is None:
            self._say(f"{job.name}: failed ({job.last_words(status)})")
            return False
        score = results["over_seeds"]["dev/score"]
        spread = f"{score['median']:.4f} ({score['min']:.4f} to {score['max']:.4f})"
        self._say(f"{job.name}: dev/score {spread}, {seconds:.0f} s")
        return True


def _job(wanted: Process) -> Job:
    return Job(wanted.name, tuple(wanted.command), wanted.workdir, wanted.workdir / LOG)
