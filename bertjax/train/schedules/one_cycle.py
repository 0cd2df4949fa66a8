"""One-cycle (Smith & Topin 2017, section 3; Smith 2018): up, down again, then close to zero.

The way up is the warmup, which the original makes as long as the way down and which starts here at
1 / warmup_steps of the peak, as in all schedules. Momentum is not cycled.
"""

import dataclasses

import jax.numpy as jnp
import optax

from bertjax.constraints import LearningRate, OpenShare, PositiveShare
from bertjax.train.schedule import END_BELOW_PEAK


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Decays linearly to a share of the peak, and in the last steps to the final learning rate.

    Attributes:
      end_learning_rate: At the last step of the run.
      cycle_end: The learning rate at the end of the cycle as a share of the peak.
      annihilation_share: Share of the steps after the warmup that follow the cycle.
    """

    end_learning_rate: LearningRate = 0.0
    cycle_end: PositiveShare = 0.1
    annihilation_share: OpenShare = 0.2

    relations = (END_BELOW_PEAK,)

    def decay(self, peak: float, steps: int, warmup_steps: int) -> optax.Schedule:
        """The learning rate of each of the `steps` after the warmup."""
        last = max(steps - round(self.annihilation_share * steps), 1)
        times = jnp.asarray([0, last, max(steps, last + 1)], jnp.float32)
        middle = max(self.cycle_end * peak, self.end_learning_rate)
        rates = jnp.asarray([peak, middle, self.end_learning_rate], jnp.float32)
        return lambda step: jnp.interp(step, times, rates)
