"""The table of a sweep: one row per run; as text, Markdown and JSON."""

import time
from collections.abc import Sequence
from typing import Any

from bertjax.sweeps import glue_table
from bertjax.sweeps.plan import Sweep
from bertjax.sweeps.progress import Progress, best_of

_NOTHING = "-"


def rows(sweep: Sweep, found: Sequence[Progress]) -> list[list[str]]:
    """The best run has an asterisk; the first row names the columns."""
    best = best_of(sweep, found)
    header = ["run", "state", "steps", f"best {sweep.metric}", "last", "heard of"]
    return [header, *(_row(one, one is best) for one in found)]


def _row(one: Progress, is_best: bool) -> list[str]:
    return [
        one.run.name,
        one.state,
        f"{one.step:,}/{_NOTHING if one.steps is None else f'{one.steps:,}'}",
        _number(one.best) + ("*" if is_best else ""),
        _number(one.last),
        _NOTHING if one.heard is None else _ago(time.time() - one.heard),
    ]


def markdown(sweep: Sweep, found: Sequence[Progress]) -> str:
    """The table for a README; when a run was heard of is no news by then."""
    table = glue_table.markdown([row[:-1] for row in rows(sweep, found)])
    return table + "".join(f"\n- {line}\n" for line in failures(found))


def text(sweep: Sweep, found: Sequence[Progress]) -> str:
    """The table for a terminal, with failures and a count."""
    table = glue_table.text(rows(sweep, found))
    return "\n".join([table, *failures(found), summary(found)])


def summary(found: Sequence[Progress]) -> str:
    """`3 runs: 1 running, 2 done`."""
    states = [one.state for one in found]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(found)} runs: {', '.join(counts)}"


def failures(found: Sequence[Progress]) -> list[str]:
    """A line for each run that failed: what it said last, and where the rest lies."""
    failed = [one for one in found if one.state == "failed"]
    return [f"{one.run.name} failed: {one.error} ({one.log})" for one in failed]


def content(sweep: Sweep, found: Sequence[Progress]) -> dict[str, Any]:
    """All of it as plain values."""
    best = best_of(sweep, found)
    return {
        "sweep": sweep.spec,
        "metric": sweep.metric,
        "mode": sweep.mode,
        "best": best and best.run.name,
        "runs": {one.run.name: one.content() for one in found},
    }


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.4g}" if abs(value) >= 1000 else f"{value:.4f}"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0, seconds):.0f} s ago"
