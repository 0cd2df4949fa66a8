"""Display a running sweep: a live table in a terminal, plain lines elsewhere."""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence

from bertjax.sweeps import progress
from bertjax.sweeps import table as sweeps_table
from bertjax.sweeps.plan import Run, Sweep
from bertjax.sweeps.progress import Progress

_SECONDS_BETWEEN_LOOKS = 1.0
_LINES_AROUND = 6
_FIRST_SHOWN = ("running", "failed", "done", "begun", "waiting")
_STYLES = {"running": "cyan", "failed": "red", "done": "green"}


def screen_for(sweep: Sweep, workdir: pathlib.Path) -> "Lines":
    """Whichever fits where the output goes; to be used with `with`."""
    both = sys.stdout.isatty() and sys.stderr.isatty()
    return (Table if both else Lines)(sweep, workdir)


class Lines:
    """A line when a run begins, and one when it ends, on standard error."""

    def __init__(self, sweep: Sweep, workdir: pathlib.Path):
        self._sweep, self._workdir = sweep, workdir
        self._running: set[str] = set()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_) -> None:
        pass

    def begun(self, run: Run) -> None:
        self._running.add(run.name)
        number = self._sweep.runs.index(run) + 1
        self._log(f"[{number}/{len(self._sweep.runs)}] {run.name}")

    def ended(self, run: Run, seconds: float) -> None:
        self._running.discard(run.name)
        now = progress.read_run(self._sweep, run, self._workdir / run.name)
        if now.state != "done":
            self._log(f"{run.name}: failed ({now.error}); {now.log}")
        elif now.best is None:
            self._log(f"{run.name}: done, without {self._sweep.metric}, {seconds:.0f} s")
        else:
            self._log(f"{run.name}: {self._sweep.metric} {now.best:.4f}, {seconds:.0f} s")

    def looked(self) -> None:
        pass

    def _log(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class Table(Lines):
    """All runs at once, as long as it runs."""

    def __enter__(self) -> "Table":
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        self._next_look = 0.0
        self._finished: dict[str, Progress] = {}
        return self

    def __exit__(self, *_) -> None:
        self._live.stop()

    def looked(self) -> None:
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        found = [self._finished.get(run.name) or self._read(run) for run in self._sweep.runs]
        self._live.update(_table(self._sweep, found, self._console.height), refresh=True)

    def _read(self, run: Run) -> Progress:
        now = progress.read_run(self._sweep, run, self._workdir / run.name)
        if now.state == "done":
            self._finished[run.name] = now
        elif run.name in self._running:
            # It holds its folder only once it has read its text.
            now = dataclasses.replace(now, state="running")
        return now

    def _log(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)


def _table(sweep: Sweep, found: Sequence[Progress], height: int):
    from rich.progress_bar import ProgressBar
    from rich.table import Table as Columns
    from rich.text import Text

    header, *rows = sweeps_table.rows(sweep, found)
    shown = _most_wanted(found, max(3, height - _LINES_AROUND))
    columns = Columns(*[*header[:2], "", *header[2:]], caption=sweeps_table.summary(found))
    for number in sorted(shown):
        name, state, *rest = map(Text, rows[number])
        state.stylize(_STYLES.get(state.plain, "dim"))
        total = found[number].steps or 1
        bar = ProgressBar(
            total=total,
            completed=min(found[number].step, total),
            width=16,
            complete_style="cyan",
            finished_style="green",
        )
        columns.add_row(name, state, bar, *rest)
    return columns


def _most_wanted(found: Sequence[Progress], room: int) -> list[int]:
    """Which runs to show where not all have room: those that run before those that wait."""
    order = sorted(range(len(found)), key=lambda n: _FIRST_SHOWN.index(found[n].state))
    return order[:room]
