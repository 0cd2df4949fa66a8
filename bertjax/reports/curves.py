"""Convert metric records to curves: a metric of a split over steps, tokens and hours.

Records of evaluations have steps only; their tokens and hours are interpolated between the
training records around them. Long curves are thinned: neighbouring values are replaced by their
minimum and maximum, so that spikes stay visible.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.reports.collect import FINE_TUNING, Records, ReportedRun
from bertjax.train.evaluate import HELD_OUT
from bertjax.train.report import GOODPUT

TRAINING = "training"

MAX_POINTS = 900
"""Maximum number of points of a curve: more than the pixels that a plot has for them."""

_AXES = {"step", "tokens", "seconds"}
_DIGITS = 6
_SECONDS_PER_HOUR = 3600


def curves(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """The curves of all seeds of all runs, as plain values for JSON.

    Returns:
      For each seed with records `{"run", "seed", "x", "curves"}`: the number of the run, the seed
      (null for a pretraining), its x values as rows of [step, tokens, hours] (null where not
      recorded), and `{"split", "metric", "at", "y"}` for each metric: rows of `x`, and values
      (null where not finite).
    """
    return [
        {"run": number, "seed": seed, **_of_records(run, records)}
        for number, run in enumerate(runs)
        for seed, records in run.parts
        if records
    ]


def _of_records(run: ReportedRun, records: Records) -> dict[str, Any]:
    found: dict[tuple[str, str], list[tuple[int, float | None]]] = {}
    for row, record in enumerate(records):
        for name, value in record.items():
            if name not in _AXES and not name.startswith(GOODPUT):
                found.setdefault(split_of(run, name), []).append((row, value))
    thinned = {key: thin(points, MAX_POINTS) for key, points in found.items()}
    rows = sorted({row for points in thinned.values() for row, _ in points})
    place = {row: number for number, row in enumerate(rows)}
    x = _x_values(records)
    return {
        "x": [x[row] for row in rows],
        "curves": [
            {
                "split": split,
                "metric": metric,
                "at": [place[row] for row, _ in points],
                "y": [_round(value) for _, value in points],
            }
            for (split, metric), points in thinned.items()
        ],
    }


def split_of(run: ReportedRun, name: str) -> tuple[str, str]:
    """The split on which a metric was measured, and its name without the split.

    `held_out/mlm/loss` is `mlm/loss` of the split `held_out`. In a fine-tuning, `dev/accuracy` and
    the training metric `glue/accuracy` are `accuracy` of the splits `dev` and `training`.
    """
    first, _, rest = name.partition("/")
    if first == HELD_OUT.rstrip("/"):
        return first, rest
    if run.kind == FINE_TUNING and rest:
        if first.startswith(("dev", "test")):
            return first, rest
        # `loss` is the sum of the losses of all objectives.
        if "task" in run.config and first == run.config["task"]["name"] and rest != "loss":
            return TRAINING, rest
    return TRAINING, name


def thin(
    points: Sequence[tuple[int, float | None]], limit: int
) -> Sequence[tuple[int, float | None]]:
    """Thins a curve to `limit` points: the first, the last, and extremes and a gap of equal parts.

    Args:
      points: (row, value) in order; None is a value that is not finite.
      limit: Maximum number of points, at least 5.
    """
    if len(points) <= limit:
        return points
    kept = {0, len(points) - 1}
    for part in np.array_split(np.arange(len(points)), (limit - 2) // 3):
        finite = sorted((points[n][1], int(n)) for n in part if points[n][1] is not None)
        gaps = [int(n) for n in part if points[n][1] is None]
        kept.update({finite[0][1], finite[-1][1]} if finite else (), gaps[:1])
    return [points[n] for n in sorted(kept)]


def _x_values(records: Records) -> list[list[float | None]]:
    """[step, tokens, hours] of every record."""
    steps = [record["step"] for record in records]
    tokens = _interpolate(records, steps, "tokens")
    seconds = _interpolate(records, steps, "seconds")
    hours = [None if value is None else value / _SECONDS_PER_HOUR for value in seconds]
    return [
        [step, token and round(token), _round(hour)]
        for step, token, hour in zip(steps, tokens, hours, strict=True)
    ]


def _interpolate(records: Records, steps: Sequence[int], name: str) -> Sequence[float | None]:
    known = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    if not known:
        return [None] * len(steps)
    at, values = zip(*([(0, 0), *known] if known[0][0] > 0 else known), strict=True)
    return np.interp(steps, at, values).tolist()


def _round(value: Any) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def last_values(run: ReportedRun) -> Mapping[str, float]:
    """The newest value of every metric but those of goodput; see `Progress.metrics`."""
    return {
        name: value
        for name, value in run.progress.metrics.items()
        if name not in _AXES and isinstance(value, int | float) and not name.startswith(GOODPUT)
    }


def records_of(run: ReportedRun) -> Iterator[Mapping[str, Any]]:
    """The records of all seeds."""
    for _, records in run.parts:
        yield from records
