"""The runs of a suite: a `bertjax finetune` each, in a process and a folder of its own.

They go one after the other or side by side. What is finished is not done again, and what was
stopped goes on.
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bertjax.errors import UserError
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


@contextlib.contextmanager
def sigterm_as_control_c() -> Iterator[None]:
    """A suite that is asked to end asks its runs to: they save, and the same command goes on."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
        self._started, self._lock, self._stopped = 0, threading.Lock(), False
        self._free = list(range(parallel))
        self._running: set[subprocess.Popen] = set()

    def run(self, wanted: Sequence[Process]) -> list[pathlib.Path]:
        """Runs what is not finished; returns the folders of what failed.

        Raises:
          SystemExit: it was interrupted; the runs were asked to save and to end.
        """
        with concurrent.futures.ThreadPoolExecutor(self._parallel) as pool:
            futures = {pool.submit(self._one, each): each.workdir for each in wanted}
            try:
                ended = [(futures[f], f.result()) for f in concurrent.futures.as_completed(futures)]
            except KeyboardInterrupt:
                self._stop()
                pool.shutdown(cancel_futures=True)
                self._say("stopped; the same command goes on from there")
                raise SystemExit(130) from None
        return [workdir for workdir, success in ended if not success]

    def _stop(self) -> None:
        self._stopped = True
        for process in list(self._running):
            process.terminate()

    def _one(self, wanted: Process) -> bool:
        """Whether the run is finished in the end."""
        done = finished(wanted.workdir)
        if done and done["seeds"] == self._seeds:
            return True
        with self._lock:
            self._started += 1
            number, share = self._started, self._free.pop()
        try:
            started = time.monotonic()
            wanted.workdir.mkdir(parents=True, exist_ok=True)
            with open(wanted.workdir / LOG, "ab") as log:
                self._say(f"[{number}/{self._total}] {wanted.name}")
                status = self._wait(wanted.command, share, log)
            return self._told(wanted, status, time.monotonic() - started)
        finally:
            with self._lock:
                self._free.append(share)

    def _wait(self, words: Sequence[str], share: int, log) -> int:
        if self._stopped:
            return 130
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(share, self._parallel),
        )
        _take_cores(process.pid, share, self._parallel)
        self._running.add(process)
        try:
            return process.wait()
        finally:
            self._running.discard(process)

    def _told(self, wanted: Process, status: int, seconds: float) -> bool:
        if self._stopped:
            return False
        results = finished(wanted.workdir) if status == 0 else None
        if results is None:
            text = (wanted.workdir / LOG).read_text(encoding="utf-8", errors="replace").strip()
            last = text.splitlines()[-1] if text else "it said nothing"
            self._say(f"{wanted.name}: failed ({last})")
            return False
        score = results["over_seeds"]["dev/score"]
        spread = f"{score['median']:.4f} ({score['min']:.4f} to {score['max']:.4f})"
        self._say(f"{wanted.name}: dev/score {spread}, {seconds:.0f} s")
        return True


def _environment(share: int, parallel: int) -> dict[str, str]:
    """A GPU for each of several runs, where there are any."""
    environment = dict(os.environ)
    if parallel > 1 and environment.get("JAX_PLATFORMS", "") != "cpu":
        named = environment.get("CUDA_VISIBLE_DEVICES")
        cards = named.split(",") if named else [str(n) for n in range(_count_gpus())]
        if cards:
            environment["CUDA_VISIBLE_DEVICES"] = cards[share % len(cards)]
    return environment


def _count_gpus() -> int:
    return len(list(pathlib.Path("/proc/driver/nvidia/gpus").glob("*")))


def _take_cores(process: int, share: int, parallel: int) -> None:
    """Gives a run, before it has threads, its share of the cores, where the system lets it."""
    if parallel == 1 or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(ProcessLookupError):  # it may have ended already
        os.sched_setaffinity(process, cores[share::parallel] or [cores[share % len(cores)]])
