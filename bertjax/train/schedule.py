"""Learning rate over optimizer steps: warmup to the peak, then a decay from `schedules/`."""

import itertools
from collections.abc import Sequence
from typing import Any

import optax

from bertjax import catalog
from bertjax.constraints import Relation
from bertjax.errors import UserError

FOLDER = "train/schedules"

SCHEDULE_STEP = "schedule_step"
"""Batch key [B], and metric: the position in the schedule, where it is not the step."""

END_BELOW_PEAK = Relation(
    ("end_learning_rate", "learning_rate"),
    lambda end, peak: end <= peak,
    "end_learning_rate <= learning_rate",
    "lower end_learning_rate",
)
"""Relation of a schedule with a final learning rate."""


def make(
    name: str,
    *,
    learning_rate: float,
    num_train_steps: int,
    warmup_steps: int = 0,
    **hyperparameters: Any,
) -> optax.Schedule:
    """Builds a schedule with a linear warmup.

    Step 0 has 1/warmup_steps of the peak: with a learning rate of 0 it would have no effect.

    Args:
      name: A file of `schedules/`.
      learning_rate: The peak.
      num_train_steps: Steps of the whole run; the decay ends there.
      warmup_steps: Steps of linear growth.
      hyperparameters: Fields of the schedule.

    Raises:
      UserError: an unknown name, a negative learning rate, or a warmup longer than the run.
    """
    if learning_rate < 0:
        raise UserError(f"learning_rate: got {learning_rate}, expected 0 or more, such as 1e-4")
    if not 0 <= warmup_steps <= num_train_steps:
        raise UserError(
            f"warmup_steps: got {warmup_steps}, expected 0 to num_train_steps={num_train_steps}; "
            "change one of them"
        )
    schedule = catalog.load(FOLDER, name).Schedule(**hyperparameters)
    decay = schedule.decay(learning_rate, max(num_train_steps - warmup_steps, 1), warmup_steps)
    if not warmup_steps:
        return decay
    warmup = optax.linear_schedule(learning_rate / warmup_steps, learning_rate, warmup_steps - 1)
    return optax.join_schedules([warmup, decay], [warmup_steps])


def join(
    name: str, peaks: Sequence[tuple[float, int]], steps: Sequence[int], **hyperparameters: Any
) -> optax.Schedule:
    """Joins the schedules of parts of a run.

    Args:
      name: A file of `schedules/`.
      peaks: Learning rate and warmup steps of each part.
      steps: Number of steps of each part.
      hyperparameters: Fields of the schedule, the same for all parts.
    """
    parts = [
        make(
            name,
            learning_rate=learning_rate,
            num_train_steps=count,
            warmup_steps=warmup_steps,
            **hyperparameters,
        )
        for (learning_rate, warmup_steps), count in zip(peaks, steps, strict=True)
    ]
    return optax.join_schedules(parts, list(itertools.accumulate(steps))[:-1])
