"""Choose the checkpoints to keep: the newest few, and the best few by a metric."""

import dataclasses
import math
from collections.abc import Mapping

from bertjax.errors import UserError

Metrics = Mapping[str, float]

DIRECTIONS = {"min": 1.0, "max": -1.0}


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which checkpoints of a run stay.

    Attributes:
      latest: how many of the newest; at least 1, since a run resumes from them.
      best: how many of the best besides.
      metric: the name of the metric that decides which are best.
      mode: "min" when less of it is better, "max" when more is.

    Raises:
      UserError: no checkpoint would stay, or the mode is neither.
    """

    latest: int = 3
    best: int = 1
    metric: str = "held_out/mlm/loss"
    mode: str = "min"

    def __post_init__(self):
        if self.latest < 1:
            raise UserError(
                f"keep_checkpoints={self.latest}: a run resumes from the newest; expected 1 or more"
            )
        if self.mode not in DIRECTIONS:
            raise UserError(f"best_mode={self.mode!r}: expected 'min' (less is better) or 'max'")


def ranked(metrics: Mapping[int, Metrics], metric: str, mode: str) -> list[int]:
    """The steps at which a metric was measured, best first; of equal ones the older first.

    Args:
      metrics: each checkpoint's metrics, by step.
      metric: see `Keep`.
      mode: see `Keep`.
    """
    measured = [step for step in metrics if math.isfinite(metrics[step].get(metric, math.nan))]
    return sorted(measured, key=lambda step: (DIRECTIONS[mode] * metrics[step][metric], step))


def superfluous(metrics: Mapping[int, Metrics], keep: Keep) -> list[int]:
    """The steps whose checkpoints may go, oldest first; `metrics` are those of each, by step."""
    best = ranked(metrics, keep.metric, keep.mode)[: keep.best] if keep.best else []
    kept = {*sorted(metrics)[-keep.latest :], *best}
    return sorted(set(metrics) - kept)
