"""Show the progress of a command on standard error: a bar in a terminal, plain lines elsewhere."""

import contextlib
import datetime
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

_SECONDS_BETWEEN_LINES = 5.0
_MIN_FRACTION_FOR_ETA = 0.02
"""Fraction of the work before an ETA is shown: the first part includes compilation."""


class ProgressDisplay:
    """Print a line every five seconds, with the fraction that is done and the remaining time."""

    def __init__(self):
        self._start = self._last = time.monotonic()
        self._first: float | None = None
        self._fraction: float | None = None

    def update(self, fraction: float | None, text: str) -> None:
        """Show the current progress.

        Args:
          fraction: Fraction of the work that is done, 0 to 1; None if unknown. The value of the
            first call counts as done earlier, and does not enter the estimate of the speed. None
            after a fraction is a step of unknown duration: it is shown at once, and the estimate
            starts again after it.
          text: The current activity, in one line.
        """
        if fraction is None and self._fraction is not None:
            self._last, self._first = -math.inf, None
        self._fraction = fraction
        if self._first is None:
            self._first, self._start = fraction, time.monotonic()
        share = "" if fraction is None else f"{fraction:.0%} "
        self.show(f"{share}{text}{self._format_eta(fraction)}")

    def show(self, line: str) -> None:
        """Shows the newest progress line: prints one every few seconds."""
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self.log(line)

    def log(self, line: str) -> None:
        """Print a line that remains visible."""
        print(line, file=sys.stderr, flush=True)

    def _format_eta(self, fraction: float | None) -> str:
        done = 0.0 if fraction is None else fraction - (self._first or 0.0)
        if done < _MIN_FRACTION_FOR_ETA:
            return ""
        seconds = (time.monotonic() - self._start) * (1 - fraction) / done
        return f", ETA {datetime.timedelta(seconds=round(seconds))}"


class _Bar(ProgressDisplay):
    """Move a progress bar of rich."""

    def __init__(self, bar: Any):
        super().__init__()
        self._bar, self._task = bar, bar.add_task("starting", total=None)

    def update(self, fraction: float | None, text: str) -> None:
        total = None if fraction is None else 1.0
        self._bar.update(self._task, description=text, total=total, completed=fraction or 0)

    def log(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False)


@contextlib.contextmanager
def progress_display() -> Iterator[ProgressDisplay]:
    """Create the display that fits standard error: a bar for a terminal, else plain lines."""
    if not sys.stderr.isatty():
        yield ProgressDisplay()
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.SpinnerColumn(),
        bars.BarColumn(bar_width=20),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.TextColumn("ETA"),
        bars.TimeRemainingColumn(),
    )
    options = {"transient": True, "speed_estimate_period": 120}
    with bars.Progress(*columns, console=Console(stderr=True), **options) as bar:
        yield _Bar(bar)
