"""Warmup-stable-decay: constant, then a short decay (Hu et al. 2024; Hägele et al. 2024).

A checkpoint from before the decay can be trained for longer, or decayed on other data, without
having known the length of the run.
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp
import optax

from bertjax.constraints import LearningRate, NonNegativeInt, OneOf, PositiveShare
from bertjax.errors import UserError
from bertjax.train.schedule import END_BELOW_PEAK

SHAPES = {"linear": lambda share: 1 - share, "1-sqrt": lambda share: 1 - jnp.sqrt(share)}
"""Share of the peak that is left, by the share of the decay that is done."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Stays at the peak and decays at the end.

    Attributes:
      end_learning_rate: At the last step of the run.
      decay_share: Share of all steps of the run in the decay (Hägele et al. 2024, section 3).
      decay_steps: Number of steps of the decay; 0 for `decay_share`.
      decay_shape: "1-sqrt", 1 minus the square root of the share that is done, or "linear".
    """

    end_learning_rate: LearningRate = 0.0
    decay_share: PositiveShare = 0.2
    decay_steps: NonNegativeInt = 0
    decay_shape: Annotated[str, OneOf(SHAPES)] = "1-sqrt"

    relations = (END_BELOW_PEAK,)

    def decay(self, peak: float, steps: int, warmup_steps: int) -> optax.Schedule:
        """The learning rate of each of the `steps` after the warmup.

        Raises:
          UserError: the decay is longer than these.
        """
        length = self.decay_steps or max(round(self.decay_share * (steps + warmup_steps)), 1)
        if length > steps:
            name = "decay_steps" if self.decay_steps else "decay_share"
            raise UserError(
                f"config.optimizer.{name}: got a decay of {length} steps, expected at most the "
                f"{steps} after the warmup; lower it or warmup_steps"
            )
        shape, end = SHAPES[self.decay_shape], self.end_learning_rate

        def learning_rate(step):
            done = jnp.clip((step - (steps - length)) / length, 0.0, 1.0)
            return end + (peak - end) * shape(done)

        return learning_rate
