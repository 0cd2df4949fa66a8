"""Tables as text and Markdown, and the table of runs: one row per run with its state."""

import time
from collections.abc import Sequence

from bertjax.sweeps.progress import Progress, best_of

NO_VALUE = "-"

Rows = Sequence[Sequence[str]]
"""Rows of cells; the first row is the header."""


def markdown(rows: Rows) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def text(rows: Rows) -> str:
    """A table with aligned columns for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def run_rows(found: Sequence[Progress]) -> list[list[str]]:
    """One row per run; the best value is marked with an asterisk."""
    best = best_of(found)
    header = ["run", "state", "steps", f"best {found[0].run.metric}", "last", "updated"]
    return [header, *(_run_row(one, one is best) for one in found)]


def _run_row(one: Progress, is_best: bool) -> list[str]:
    return [
        one.run.name,
        one.state,
        f"{one.step:,}/{NO_VALUE if one.steps is None else f'{one.steps:,}'}",
        _number(one.best) + ("*" if is_best else ""),
        _number(one.last),
        NO_VALUE if one.updated is None else _ago(time.time() - one.updated),
    ]


def runs_markdown(found: Sequence[Progress]) -> str:
    """The table of runs and their failures in Markdown, without times."""
    table = markdown([row[:-1] for row in run_rows(found)])
    return table + "".join(f"\n- {line}\n" for line in failures(found))


def runs_text(found: Sequence[Progress]) -> str:
    """The table of runs for a terminal, with failures and counts."""
    return "\n".join([text(run_rows(found)), *failures(found), summary(found)])


def summary(found: Sequence[Progress]) -> str:
    """Number of runs by state: `3 runs: 1 running, 2 done`."""
    states = [one.state for one in found]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(found)} runs: {', '.join(counts)}"


def failures(found: Sequence[Progress]) -> list[str]:
    """A line for each failed run: its error and its log."""
    failed = [one for one in found if one.state == "failed"]
    return [f"{one.run.name} failed: {one.error} ({one.log})" for one in failed]


def _number(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.4g}" if abs(value) >= 1000 else f"{value:.4f}"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0, seconds):.0f} s ago"
