"""Results of a GLUE suite: the table with published scores, JSON, files for the test server."""

import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from bertjax.sweeps import suite
from bertjax.sweeps.run import Score, suite_content
from bertjax.sweeps.table import NO_VALUE
from bertjax.tasks.glue.table import GLUE, PUBLISHED_ROWS, PUBLISHED_TASKS, glue_task

_HEADER = ("task", "metrics", "median", "spread", "seeds")


def task_score(score: Score) -> float:
    """Score of a task on the leaderboard: mean over metrics, and over both dev sets of MNLI."""
    task = glue_task(score.name)
    splits = [split.name for split in task.splits if split.server and split.labelled]
    names = [f"{split}/{metric}" for split in splits for metric in task.metrics]
    return statistics.mean(score.medians[name] for name in names)


def average(scores: Sequence[Score]) -> float:
    """Score of the leaderboard: mean over tasks."""
    return statistics.mean(map(task_score, scores))


def rows(scores: Sequence[Score]) -> list[list[str]]:
    """A header, a row for each task and one for the average, in percent."""
    columns = [PUBLISHED_TASKS.index(score.name) for score in scores]
    averages = [_percent(_mean(row, columns)) for row in PUBLISHED_ROWS.values()]
    return [
        [*_HEADER, *PUBLISHED_ROWS],
        *map(_row, scores),
        [f"average of {len(scores)}", "", f"{100 * average(scores):.1f}", "", "", *averages],
    ]


def _row(score: Score) -> list[str]:
    task = glue_task(score.name)
    names = [f"dev/{metric}" for metric in task.metrics]
    if task.name == "mnli":
        names.append("dev_mismatched/accuracy")
    column = PUBLISHED_TASKS.index(task.name)
    return [
        task.name,
        ", ".join(task.metrics) + (", mismatched" if task.name == "mnli" else ""),
        " / ".join(f"{100 * score.medians[name]:.1f}" for name in names),
        score.spread,
        str(score.seeds) + (f" at 1 of {score.points} points" if score.points > 1 else ""),
        *(_percent(row[column]) for row in PUBLISHED_ROWS.values()),
    ]


def _mean(row: Sequence[float | None], columns: Sequence[int]) -> float | None:
    """Mean over the same tasks; None if one of them was not published."""
    values = [row[column] for column in columns]
    return None if None in values else statistics.mean(values)


def _percent(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.1f}"


def content(scores: Sequence[Score]) -> dict[str, Any]:
    """The table as plain values for JSON, as fractions, next to the published one."""
    return {
        **suite_content(scores, task_score),
        "published": {
            name: dict(zip(PUBLISHED_TASKS, row, strict=True))
            for name, row in PUBLISHED_ROWS.items()
        },
    }


def write_submission(path: pathlib.Path, scores: Sequence[Score]) -> list[str]:
    """Writes the test server's files of all tasks into one archive; returns the missing files."""
    suite.write_submission(path, scores, _server_files())
    return missing_files(scores)


def missing_files(scores: Sequence[Score]) -> list[str]:
    """Files that the test server requires and no finished run has written."""
    return suite.missing_files(scores, _server_files())


def _server_files() -> list[str]:
    splits = (split for task in GLUE for split in task.splits)
    return [f"{split.server}.tsv" for split in splits if split.server and not split.labelled]
