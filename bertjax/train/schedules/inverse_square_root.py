"""Decay with the inverse square root of the step (Vaswani et al. 2017, equation 3)."""

import dataclasses

import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Decays independently of the length of the run; scaled so that the peak is the given one."""

    def decay(self, peak: float, steps: int, warmup_steps: int) -> optax.Schedule:
        """The learning rate of each of the `steps` after the warmup."""
        warmup_steps = max(warmup_steps, 1)
        # optax.join_schedules evaluates it during the warmup as well, at negative steps.
        return lambda step: peak * (warmup_steps / (warmup_steps + jnp.maximum(step, 0))) ** 0.5
