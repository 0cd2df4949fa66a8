"""Polynomial decay to a final learning rate; a power of 1 is linear, 0.5 that of LAMB's phases."""

import dataclasses

import optax

from bertjax.constraints import LearningRate, PositiveFloat
from bertjax.train.schedule import END_BELOW_PEAK


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Decays by a power of the remaining share of the steps.

    Attributes:
      end_learning_rate: At the last step of the run.
      power: Exponent of the remaining share.
    """

    end_learning_rate: LearningRate = 0.0
    power: PositiveFloat = 1.0

    relations = (END_BELOW_PEAK,)

    def decay(self, peak: float, steps: int, warmup_steps: int) -> optax.Schedule:
        """The learning rate of each of the `steps` after the warmup."""
        return optax.polynomial_schedule(peak, self.end_learning_rate, self.power, steps)
