"""A constant learning rate after the warmup."""

import dataclasses

import optax


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Stays at the peak."""

    def decay(self, peak: float, steps: int, warmup_steps: int) -> optax.Schedule:
        """The learning rate of each of the `steps` after the warmup."""
        return optax.constant_schedule(peak)
