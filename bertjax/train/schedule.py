"""Learning rate schedules over optimizer steps: warmup from 0 to the peak, then decay."""

from typing import Annotated

import jax.numpy as jnp
import optax

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest


def _linear(peak: float, end: float, steps: int, power: float) -> optax.Schedule:
    return optax.linear_schedule(peak, end, steps)


def _polynomial(peak: float, end: float, steps: int, power: float) -> optax.Schedule:
    return optax.polynomial_schedule(peak, end, power, steps)


def _cosine(peak: float, end: float, steps: int, power: float) -> optax.Schedule:
    decay = optax.cosine_decay_schedule(peak - end, steps)
    return lambda step: end + decay(step)


def _constant(peak: float, end: float, steps: int, power: float) -> optax.Schedule:
    return optax.constant_schedule(peak)


DECAYS = {
    "linear": _linear,
    "polynomial": _polynomial,
    "cosine": _cosine,
    "constant": _constant,
}

INVERSE_SQUARE_ROOT = "inverse_square_root"

ScheduleName = Annotated[str, OneOf((*DECAYS, INVERSE_SQUARE_ROOT))]


def make(
    name: str,
    *,
    learning_rate: float,
    num_train_steps: int,
    warmup_steps: int = 0,
    end_learning_rate: float = 0.0,
    power: float = 1.0,
) -> optax.Schedule:
    """The learning rate of each step.

    The first step has the rate of step 1 of the warmup, not 0: no step is wasted.

    Args:
      name: "linear", "polynomial", "cosine", "constant" or "inverse_square_root" (Vaswani et al.
        2017, equation 3, scaled so that the peak is `learning_rate`).
      learning_rate: The peak.
      num_train_steps: Steps of the whole run; the decay ends there.
      warmup_steps: Steps of linear growth.
      end_learning_rate: Where linear, polynomial and cosine decay end.
      power: Of the polynomial.

    Raises:
      UserError: an unknown name, a negative rate, or a warmup that does not fit the run.
    """
    if learning_rate < 0:
        raise UserError(f"learning_rate={learning_rate}: expected 0 or more, such as 1e-4")
    if not 0 <= warmup_steps <= num_train_steps:
        raise UserError(
            f"warmup_steps={warmup_steps} must lie between 0 and num_train_steps={num_train_steps}"
        )
    if name == INVERSE_SQUARE_ROOT:
        decay = _inverse_square_root(learning_rate, max(warmup_steps, 1))
    elif name in DECAYS:
        steps = max(num_train_steps - warmup_steps, 1)
        decay = DECAYS[name](learning_rate, end_learning_rate, steps, power)
    else:
        raise UserError(f"no schedule {name!r}: {nearest(name, [*DECAYS, INVERSE_SQUARE_ROOT])}")
    if not warmup_steps:
        return decay
    warmup = optax.linear_schedule(learning_rate / warmup_steps, learning_rate, warmup_steps - 1)
    return optax.join_schedules([warmup, decay], [warmup_steps])


def _inverse_square_root(peak: float, warmup_steps: int) -> optax.Schedule:
    # During the warmup it is asked for steps below 0 as well, and what it says is not used.
    return lambda step: peak * (warmup_steps / (warmup_steps + jnp.maximum(step, 0))) ** 0.5
