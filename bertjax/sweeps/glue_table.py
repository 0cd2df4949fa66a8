"""The table of a GLUE suite: medians and spread next to published rows; Markdown, text, JSON."""

import statistics
from collections.abc import Sequence
from typing import Any

from bertjax.sweeps.glue import Score, average
from bertjax.tasks.glue import table as glue_table
from bertjax.tasks.glue.table import glue_task

_HEADER = ("task", "metrics", "median", "spread", "seeds")
_NOTHING = "-"


def rows(scores: Sequence[Score]) -> list[list[str]]:
    """A row for each task and one for the average, in percent; the first row names the columns."""
    table = [[*_HEADER, *glue_table.PUBLISHED_ROWS]]
    for score in scores:
        task = glue_task(score.run.task)
        column = glue_table.PUBLISHED_TASKS.index(task.name)
        published = [_percent(row[column]) for row in glue_table.PUBLISHED_ROWS.values()]
        spread = f"{100 * score.lowest:.1f} to {100 * score.highest:.1f}"
        own = [f"{100 * score.medians[f'dev/{metric}']:.1f}" for metric in task.metrics]
        if task.name == "mnli":
            own.append(f"{100 * score.medians['dev_mismatched/accuracy']:.1f}")
        table.append(
            [
                task.name,
                ", ".join(task.metrics) + (", mismatched" if task.name == "mnli" else ""),
                " / ".join(own),
                spread,
                str(score.seeds) + (f" at 1 of {score.points} points" if score.points > 1 else ""),
                *published,
            ]
        )
    known = [glue_table.PUBLISHED_TASKS.index(score.run.task) for score in scores]
    averages = [_percent(_mean(row, known)) for row in glue_table.PUBLISHED_ROWS.values()]
    label = f"average of {len(scores)}"
    table.append([label, "", f"{100 * average(scores):.1f}", "", "", *averages])
    return table


def _mean(row: Sequence[float | None], columns: Sequence[int]) -> float | None:
    """Of the same tasks; None where one of them was not published."""
    values = [row[column] for column in columns]
    return None if None in values else statistics.mean(values)


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.1f}"


def markdown(table: Sequence[Sequence[str]]) -> str:
    """The table for a README."""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join(lines) + "\n"


def text(table: Sequence[Sequence[str]]) -> str:
    """The table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def content(scores: Sequence[Score]) -> dict[str, Any]:
    """The same as plain values, as fractions."""
    return {
        "average": average(scores),
        "tasks": {
            score.run.task: {
                "score": score.score,
                "medians": dict(score.medians),
                "dev/score": {"min": score.lowest, "max": score.highest},
                "seeds": score.seeds,
                "points": score.points,
                "chosen": dict(score.run.point),
                "workdir": str(score.run.workdir),
            }
            for score in scores
        },
        "published": {
            name: dict(zip(glue_table.PUBLISHED_TASKS, row, strict=True))
            for name, row in glue_table.PUBLISHED_ROWS.items()
        },
    }
