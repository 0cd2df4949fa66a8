"""Which checkpoints are kept: the newest few, and the best few by a metric."""

import math
from collections.abc import Mapping

from bertjax.errors import UserError

Metrics = Mapping[str, float]

_DIRECTIONS = {"min": 1.0, "max": -1.0}


def ranked(metrics: Mapping[int, Metrics], metric: str, mode: str) -> list[int]:
    """The steps at which a metric was measured, best first; of equal ones the newer first.

    Args:
      metrics: each checkpoint's metrics, by step.
      metric: the name of the metric that decides.
      mode: "min" when less is better, "max" when more is.

    Raises:
      UserError: the mode is neither.
    """
    if mode not in _DIRECTIONS:
        raise UserError(f"best_mode={mode!r}: wanted 'min' (less is better) or 'max'")
    measured = [step for step in metrics if math.isfinite(metrics[step].get(metric, math.nan))]
    return sorted(measured, key=lambda step: (_DIRECTIONS[mode] * metrics[step][metric], -step))


def superfluous(
    metrics: Mapping[int, Metrics], *, keep_latest: int, keep_best: int, metric: str, mode: str
) -> list[int]:
    """The steps whose checkpoints may go, oldest first.

    Args:
      metrics: each checkpoint's metrics, by step.
      keep_latest: how many of the newest stay; at least 1, since a run resumes from them.
      keep_best: how many of the best stay besides.
      metric: see `ranked`.
      mode: see `ranked`.
    """
    if keep_latest < 1:
        raise UserError(
            f"keep_latest={keep_latest}: a run resumes from the newest; wanted 1 or more"
        )
    best = ranked(metrics, metric, mode)[:keep_best] if keep_best else []
    kept = {*sorted(metrics)[-keep_latest:], *best}
    return sorted(set(metrics) - kept)
