"""Run a suite: a list of fine-tuning runs in one folder, and a table of their scores."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.io.files import write_json, write_text
from bertjax.runs import bucket_sync
from bertjax.runs.workdir import FREE_FIELDS, claim
from bertjax.runtime.signals import sigterm_as_interrupt
from bertjax.sweeps import scheduler, table
from bertjax.sweeps.progress import Progress
from bertjax.sweeps.results import Score
from bertjax.sweeps.run import Run


@dataclasses.dataclass(frozen=True)
class SuiteResult:
    """What a suite returns.

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
        scheduler.check_failures(self.failed, self.num_runs)


@contextlib.contextmanager
def hold_workdir(
    folder: pathlib.Path,
    workdir: str,
    record: Mapping[str, Any],
    free: Sequence[str] = FREE_FIELDS,
) -> Iterator[None]:
    """Locks the folder of a sweep for this process, and synchronises it with its bucket.

    Args:
      folder: The folder on this machine.
      workdir: The folder as the user specified it: a path or a URL.
      record: Content of `config.json`; see `runs.workdir.claim`.
      free: Fields of the record that may differ from those of an earlier start.

    Raises:
      UserError: the folder belongs to another config, or is in use.
    """
    with (
        claim(folder, record, free=free),
        bucket_sync.synced(folder, workdir),
        sigterm_as_interrupt(),
    ):
        yield


def run(
    runs: Sequence[Run],
    workdir: str,
    record: Mapping[str, Any],
    *,
    parallel: int,
    write: Callable[[pathlib.Path], list[Score]],
) -> SuiteResult:
    """Runs what is not finished, and writes the table after each run.

    Args:
      runs: The runs.
      workdir: A path or a URL.
      record: Content of `config.json`: what all runs share.
      parallel: Maximum number of runs at a time, each with one GPU or its share of the cores.
      write: Writes the table of the runs that are finished in the folder and returns their scores.

    Raises:
      UserError: the folder belongs to another config, or is in use.
      Interrupted: Ctrl-C or SIGTERM stopped the runs, which have saved.
    """
    folder = bucket_sync.on_this_machine(workdir, alone=True)

    with hold_workdir(folder, workdir, record):
        failed = scheduler.run_all(
            runs, folder, parallel=parallel, max_devices=1, on_change=lambda: write(folder)
        )
        return SuiteResult(write(folder), failed, len(runs))


def write_table(folder: pathlib.Path, rows: table.Rows, content: Mapping[str, Any]) -> None:
    """Writes `table.md` and `results.json`."""
    write_text(folder / "table.md", table.markdown(rows))
    write_json(folder / "results.json", content)
