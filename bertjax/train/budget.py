"""Wall-clock budgets: the learning rate follows the time spent, and the run ends when it is spent.

A budget of hours compares recipes and machines at equal cost, as of Geiping & Goldstein 2023. The
clock of the host is an input of every step, so such a run cannot be repeated bit for bit.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.train.hooks import Hook, Run, Values
from bertjax.train.schedule import SCHEDULE_STEP

Rows = Mapping[str, np.ndarray]


class Budget(Hook):
    """Ends a run when its seconds of training, over all starts, are spent.

    These are the seconds in the loop without compilation and hooks, such as evaluation, so that
    their number does not change what a budget trains.

    The schedule is evaluated at num_train_steps * spent / seconds in place of the step: it has
    reached its end when the budget is spent. Every host writes its own time into its rows of the
    batch; the step takes the latest of all hosts and returns it, so that all hosts have the same
    learning rate and end at the same step. As metrics are read after further steps were dispatched,
    the run ends a few steps later.

    Args:
      seconds: The budget; 0 for none.
      num_train_steps: Steps of the schedule, and the maximum of the run.
    """

    def __init__(self, seconds: float, num_train_steps: int):
        self._seconds, self._num_train_steps = seconds, num_train_steps

    @property
    def spent(self) -> float:
        """Seconds of training over all starts of the run."""
        elapsed = time.monotonic() - self._start
        return self._before + elapsed - self._run.compile_seconds - self._run.hook_seconds

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run
        self._before, self._start = restored.get("seconds", 0.0), time.monotonic()

    def stamp(self, batches: Iterable[tuple[int, Rows]]) -> Iterator[tuple[int, Rows]]:
        """Adds the position in the schedule to the rows of each batch when it is taken."""
        for before, rows in batches:
            yield before, {**rows, **self._position(rows)} if self._seconds else rows

    def on_metrics(self, step: int, values: Values) -> None:
        if self._seconds and values[SCHEDULE_STEP] >= self._num_train_steps:
            # The step after the last one that was dispatched is the same on every host.
            self._run.num_train_steps = min(self._run.num_train_steps, self._run.step + 1)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.spent} if self._seconds else {}

    def _position(self, rows: Rows) -> Rows:
        count = len(next(iter(rows.values())))
        step = self._num_train_steps * min(self.spent / self._seconds, 1.0)
        return {SCHEDULE_STEP: np.full(count, step, np.float32)}
