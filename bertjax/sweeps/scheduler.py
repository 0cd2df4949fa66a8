"""Run sweeps and suites: runs as child processes, several at a time, each with its devices.

Finished runs are skipped, stopped runs resume from their checkpoints, failed runs are started
again. A run that fails does not stop the others.
"""

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.errors import Interrupted, UserError
from bertjax.io.files import write_json, write_text
from bertjax.runs import bucket_sync
from bertjax.runs.workdir import MUTABLE_FIELDS, claim, in_use
from bertjax.runtime.children import Children, describe_exit, pin_cores, share_environment
from bertjax.runtime.signals import sigterm_as_interrupt
from bertjax.sweeps import progress, suite, table
from bertjax.sweeps.display import LineDisplay, make_display
from bertjax.sweeps.progress import Progress
from bertjax.sweeps.run import INIT, Run, Score, median_seed, read_best

COMMAND = (sys.executable, "-m", "bertjax")


def run_all(
    runs: Sequence[Run],
    workdir: pathlib.Path,
    *,
    parallel: int = 1,
    max_devices: int | None = None,
    on_change: Callable[[], object] = lambda: None,
) -> list[Progress]:
    """Runs all runs that are not finished, in order.

    Ctrl-C and SIGTERM are forwarded to the runs, which save, and no other run is started; a second
    Ctrl-C kills them.

    Args:
      runs: The runs, with the runs they depend on (`Run.init_from`) among them.
      workdir: The folder in which each run has a folder.
      parallel: Maximum number of runs at a time.
      max_devices: Maximum number of GPUs of a run; None for an equal share of all.
      on_change: Called after each run that ends, and at the end.

    Returns:
      The runs that failed.

    Raises:
      Interrupted: Ctrl-C or SIGTERM stopped the runs, which have saved.
    """
    with make_display(runs, workdir) as display, Children() as children:
        queue = _Queue(runs, workdir, parallel, max_devices, children, display)
        while queue.has_work():
            queue.start_runs()
            for process in children.poll():
                if queue.finish(process):
                    on_change()
            display.update()
    on_change()
    if children.signal:
        raise Interrupted("stopped; the same command resumes the runs", 128 + children.signal)
    return [one for one in progress.read(runs, workdir) if one.state != "done"]


def check_failures(failed: Sequence[Progress], num_runs: int) -> None:
    """Refuses to succeed if a run has failed.

    Raises:
      UserError: with the logs of the failed runs.
    """
    if failed:
        logs = ", ".join(str(one.log) for one in failed if one.log.exists())
        raise UserError(f"{len(failed)} of {num_runs} runs failed, the others are done: {logs}")


@dataclasses.dataclass(frozen=True)
class _StartedRun:
    run: Run
    share: int
    time: float


class _Queue:
    """The runs that are waiting and those that are running."""

    def __init__(
        self,
        runs: Sequence[Run],
        workdir: pathlib.Path,
        parallel: int,
        max_devices: int | None,
        children: Children,
        display: LineDisplay,
    ):
        self._runs = {run.name: run for run in runs}
        self._workdir, self._max_devices = workdir, max_devices
        self._children, self._display = children, display
        self._waiting = [run for run in runs if not progress.is_done(run, workdir / run.name)]
        # Another process may hold a folder, such as a run that outlived a sweep that was killed.
        self._in_use = list(self._waiting)
        self._num_shares = max(1, min(parallel, len(self._waiting)))
        self._free_shares = list(reversed(range(self._num_shares)))
        self._running: dict[subprocess.Popen, _StartedRun] = {}

    def has_work(self) -> bool:
        """Whether runs are running, or waiting and to be started."""
        return bool(self._running or (self._waiting and not self._children.signal))

    def start_runs(self) -> None:
        """Starts waiting runs, up to the maximum number at a time."""
        self._in_use = [
            run for run in self._in_use if run in self._waiting and in_use(self._workdir / run.name)
        ]
        while (run := self._next()) is not None:
            self._waiting.remove(run)
            progress.clear_failure(self._workdir / run.name)
            if not run.init_from:
                self._start(run)
            elif (init := self._best_init(run)) is not None:
                self._start(dataclasses.replace(run, options={**run.options, INIT: init}))
            else:
                error = f"not started: no finished run among {', '.join(run.init_from)}"
                progress.record_failure(self._workdir / run.name, error, None)
                self._display.log_end(run, 0.0)

    def finish(self, process: subprocess.Popen) -> bool:
        """Frees the share of a process that has ended; returns False if a signal stopped it."""
        started = self._running.pop(process)
        self._free_shares.append(started.share)
        if self._children.signal:
            return False
        run = started.run
        if not progress.is_done(run, self._workdir / run.name):
            error = _last_line(self._workdir / run.name / run.log, process.returncode)
            progress.record_failure(self._workdir / run.name, error, process.returncode)
        self._display.log_end(self._runs[run.name], time.monotonic() - started.time)
        return True

    def _next(self) -> Run | None:
        """The first waiting run that can start now."""
        if self._children.signal or len(self._running) + len(self._in_use) >= self._num_shares:
            return None
        unfinished = {run.name for run in self._waiting}
        unfinished |= {started.run.name for started in self._running.values()}
        for run in self._waiting:
            if run not in self._in_use and unfinished.isdisjoint(run.init_from):
                return run
        return None

    def _best_init(self, run: Run) -> str | None:
        sources = [self._runs[name] for name in run.init_from]
        best = read_best(run.name, sources, self._workdir)
        return best and str(median_seed(best.workdir))

    def _start(self, run: Run) -> None:
        folder, share = self._workdir / run.name, self._free_shares.pop()
        folder.mkdir(parents=True, exist_ok=True)
        variables = share_environment(os.environ, share, self._num_shares, self._max_devices)
        with open(folder / run.log, "ab") as log:
            process = self._children.start(
                [*COMMAND, *run.words(str(folder))], stdout=log, stderr=log, env=variables
            )
        pin_cores(process.pid, share, self._num_shares)
        self._running[process] = _StartedRun(run, share, time.monotonic())
        self._display.log_start(self._runs[run.name])


def _last_line(log: pathlib.Path, status: int) -> str:
    """The last line of a log, after the signal if one ended the process."""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    last = text.splitlines()[-1] if text else "no output"
    return last if status >= 0 else f"ended by {describe_exit(status)}; last output: {last}"


@dataclasses.dataclass(frozen=True)
class SuiteResult:
    """The result of a suite: a list of fine-tuning runs in one folder, with a table of scores.

    Attributes:
      scores: Scores of the rows that are finished, also by earlier calls.
      failed: The runs that failed.
      num_runs: Number of all runs.
    """

    scores: Sequence[Score]
    failed: Sequence[Progress]
    num_runs: int

    def check(self) -> None:
        """Raises UserError if a run has failed."""
        check_failures(self.failed, self.num_runs)


@contextlib.contextmanager
def hold_workdir(
    folder: pathlib.Path,
    workdir: str,
    record: Mapping[str, Any],
    mutable: Sequence[str] = MUTABLE_FIELDS,
) -> Iterator[None]:
    """Locks the folder of a sweep for this process, and synchronises it with its bucket.

    Args:
      folder: The folder on this machine.
      workdir: The folder as the user specified it: a path or a URL.
      record: Content of `config.json`; see `runs.workdir.claim`.
      mutable: Fields of the record that may differ from those of an earlier start.

    Raises:
      UserError: the folder belongs to another config, or is in use.
    """
    with (
        claim(folder, record, mutable=mutable),
        bucket_sync.sync_to_bucket(folder, workdir),
        sigterm_as_interrupt(),
    ):
        yield


def run_suite(
    runs: Sequence[Run],
    workdir: str,
    record: Mapping[str, Any],
    *,
    parallel: int,
    write: Callable[[pathlib.Path], list[Score]],
) -> SuiteResult:
    """Runs all unfinished runs of a suite, and writes the table after each.

    Args:
      runs: The runs.
      workdir: A path or a URL.
      record: Content of `config.json`: by name of the suite, the settings that all runs share and
        its recipes.
      parallel: Maximum number of runs at a time, each with one GPU or its share of the cores.
      write: Writes the table of the runs that are finished in the folder and returns their scores.

    Raises:
      UserError: the folder belongs to another config, or is in use.
      Interrupted: Ctrl-C or SIGTERM stopped the runs, which have saved.
    """
    folder = bucket_sync.local_folder(workdir, with_checkpoints=True)
    mutable = (*MUTABLE_FIELDS, *suite.new_recipes(folder, record))
    with hold_workdir(folder, workdir, record, mutable):
        failed = run_all(
            runs, folder, parallel=parallel, max_devices=1, on_change=lambda: write(folder)
        )
        return SuiteResult(write(folder), failed, len(runs))


def write_table(folder: pathlib.Path, rows: table.Rows, content: Mapping[str, Any]) -> None:
    """Writes `table.md` and `results.json`."""
    write_text(folder / "table.md", table.markdown(rows))
    write_json(folder / "results.json", content)
