"""Linear decay to a final learning rate, as BERT's."""

import dataclasses

import optax

from bertjax.constraints import LearningRate
from bertjax.train.schedule import END_BELOW_PEAK


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Decays linearly.

    Attributes:
      end_learning_rate: At the last step of the run.
    """

    end_learning_rate: LearningRate = 0.0

    relations = (END_BELOW_PEAK,)

    def decay(self, peak: float, steps: int, warmup_steps: int) -> optax.Schedule:
        """The learning rate of each of the `steps` after the warmup."""
        return optax.linear_schedule(peak, self.end_learning_rate, steps)
