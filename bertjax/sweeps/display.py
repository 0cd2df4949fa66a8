"""Display the progress of runs: a live table in a terminal, plain lines elsewhere."""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence

from bertjax.runtime.progress import ProgressDisplay
from bertjax.sweeps import progress, table
from bertjax.sweeps.progress import Progress
from bertjax.sweeps.run import Run

_SECONDS_BETWEEN_UPDATES = 1.0
_LINES_AROUND_TABLE = 6
_SHOWN_FIRST = ("running", "failed", "done", "incomplete", "waiting")
_STYLES = {"running": "cyan", "failed": "red", "done": "green"}


def make_display(runs: Sequence[Run], workdir: pathlib.Path) -> "LineDisplay":
    """The display that fits standard output and error; a context manager."""
    in_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return (TableDisplay if in_terminal else LineDisplay)(runs, workdir)


class LineDisplay:
    """Logs a line when a run starts or ends, and the progress of all runs every few seconds."""

    def __init__(
        self,
        runs: Sequence[Run],
        workdir: pathlib.Path,
        total: ProgressDisplay | None = None,
    ):
        """Creates a display; nothing is printed yet.

        Args:
          runs: All runs of the sweep.
          workdir: The folder of the sweep.
          total: Shows the fraction of the work that is done.
        """
        self._runs, self._workdir = runs, workdir
        self._total = total or ProgressDisplay()
        self._running: set[str] = set()
        self._ended: set[str] = set()
        self._done: dict[str, Progress] = {}
        self._next_update = 0.0

    def __enter__(self) -> "LineDisplay":
        return self

    def __exit__(self, *_) -> None:
        pass

    def log_start(self, run: Run) -> None:
        """Logs the start of a run."""
        self._running.add(run.name)
        self._total.log(f"[{self._runs.index(run) + 1}/{len(self._runs)}] {run.name}")

    def log_end(self, run: Run, seconds: float) -> None:
        """Logs the end of a run: its metric, or its error."""
        self._running.discard(run.name)
        self._ended.add(run.name)
        now = progress.read_run(run, self._workdir / run.name)
        if now.state != "done":
            self._total.log(f"{run.name}: failed ({now.error}); {now.log}")
        elif now.best is None:
            self._total.log(f"{run.name}: done, without {run.metric}, {seconds:.0f} s")
        else:
            spread = "" if now.spread is None else " ({:.4f} to {:.4f})".format(*now.spread)
            self._total.log(f"{run.name}: {run.metric} {now.best:.4f}{spread}, {seconds:.0f} s")

    def update(self) -> None:
        """Reads the progress of the runs and shows it, at most once a second."""
        if time.monotonic() < self._next_update:
            return
        self._next_update = time.monotonic() + _SECONDS_BETWEEN_UPDATES
        found = [self._done.get(run.name) or self._read(run) for run in self._runs]
        work = sum(self._fraction(one) * one.run.work for one in found)
        self._show(found, work / sum(run.work for run in self._runs))

    def _read(self, run: Run) -> Progress:
        now = progress.read_run(run, self._workdir / run.name)
        if now.state == "done":
            self._done[run.name] = now
        elif run.name in self._running:
            # A run locks its folder only once it has read its data.
            now = dataclasses.replace(now, state="running")
        return now

    def _fraction(self, one: Progress) -> float:
        return 1.0 if one.run.name in self._ended else one.fraction

    def _show(self, found: Sequence[Progress], fraction: float) -> None:
        ended = sum(one.state == "done" or one.run.name in self._ended for one in found)
        parts = []
        for one in found:
            if one.state == "running":
                where = f"step {one.step:,}/{one.steps:,}" if one.step and one.steps else "starting"
                parts.append(f"{one.run.name}: {where}")
        self._total.update(fraction, "; ".join([f"{ended} of {len(found)} runs", *parts]))


class TableDisplay(LineDisplay):
    """A live table of all runs, with the time that remains."""

    def __init__(self, runs: Sequence[Run], workdir: pathlib.Path):
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        super().__init__(runs, workdir, _Caption(self._console))

    def __enter__(self) -> "TableDisplay":
        self._live.start()
        return self

    def __exit__(self, *_) -> None:
        self._live.stop()

    def _show(self, found: Sequence[Progress], fraction: float) -> None:
        self._total.update(fraction, table.summary(found))
        shown = rich_table(found, self._console.height, self._total.line)
        self._live.update(shown, refresh=True)


class _Caption(ProgressDisplay):
    """Keeps the newest line, for the caption of the table; log lines appear above the table."""

    def __init__(self, console):
        super().__init__()
        self._console, self.line = console, ""

    def show(self, line: str) -> None:
        self.line = line

    def log(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)


def rich_table(found: Sequence[Progress], height: int, caption: str):
    """The table of runs with a bar each.

    Args:
      found: The progress of all runs.
      height: Lines of the terminal; of more runs, those that are running or failed are shown first.
      caption: The line below the table.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    header, *rows = table.run_rows(found)
    order = sorted(range(len(found)), key=lambda n: _SHOWN_FIRST.index(found[n].state))
    columns = Table(*[*header[:2], "", *header[2:]], caption=caption)
    for number in sorted(order[: max(3, height - _LINES_AROUND_TABLE)]):
        name, state, *rest = map(Text, rows[number])
        state.stylize(_STYLES.get(state.plain, "dim"))
        bar = ProgressBar(
            total=1.0,
            completed=found[number].fraction,
            width=16,
            complete_style="cyan",
            finished_style="green",
        )
        columns.add_row(name, state, bar, *rest)
    return columns
