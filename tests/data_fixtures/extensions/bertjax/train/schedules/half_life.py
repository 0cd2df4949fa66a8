"""Exponential decay of the learning rate, given by its half-life."""

import dataclasses

import optax

from bertjax.constraints import PositiveInt


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Decays independently of the length of the run.

    Attributes:
      half_life: Number of steps in which the learning rate halves.
    """

    half_life: PositiveInt = 1000

    def decay(self, peak: float, steps: int, warmup_steps: int) -> optax.Schedule:
        """The learning rate of each of the `steps` after the warmup."""
        return optax.exponential_decay(peak, self.half_life, 0.5)
