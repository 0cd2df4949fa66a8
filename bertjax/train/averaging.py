"""Averages of weights over steps: evaluation, export and fine-tuning use them if a run has one.

A training state then has two sets of weights: `params`, which the optimizer updates, and an
average, which checkpoints store as `average/params`. Where the gradient is computed is up to the
averaging as well: a schedule-free optimizer computes it between the two.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.interfaces import Params

Average = Mapping[str, Any] | None
"""The average as `params`, and scalars of the algorithm; None without averaging."""


class Averaging:
    """No average: the parameters themselves are evaluated."""

    def init(self, params: Params) -> Average:
        """The average before the first step."""
        return None

    def gradient_params(self, average: Average, params: Params) -> Params:
        """The weights at which the gradient of a step is computed."""
        return params

    def update(
        self,
        average: Average,
        params: Params,
        *,
        step: Int[Array, ""],
        learning_rate: Float[Array, ""],
    ) -> Average:
        """The average after a step.

        Args:
          average: Before the step.
          params: After the step.
          step: Steps done before it.
          learning_rate: Of the step.
        """
        return None


@dataclasses.dataclass(frozen=True)
class ExponentialMovingAverage(Averaging):
    """Exponential moving average (Polyak & Juditsky 1992; Tarvainen & Valpola 2017, section 2).

    In early steps the decay is lower, min(decay, (1 + t) / (10 + t)) in step t as of TensorFlow's
    `ExponentialMovingAverage`, so that the average forgets the random initialisation.

    Attributes:
      decay: Weight of the average before a step.
    """

    decay: float

    def init(self, params: Params) -> Average:
        return {"params": _copy(params)}

    def update(
        self,
        average: Average,
        params: Params,
        *,
        step: Int[Array, ""],
        learning_rate: Float[Array, ""],
    ) -> Average:
        assert average is not None
        decay = jnp.minimum(self.decay, (1 + step) / (10 + step))
        return {"params": _interpolate(params, average["params"], decay)}


@dataclasses.dataclass(frozen=True)
class ScheduleFree(Averaging):
    """The averaging of schedule-free optimizers (Defazio et al. 2024, section 2).

    The optimizer updates z (`params`), x is a weighted average of all z, and gradients are computed
    at y, between the two. The weight of a z is the square of the highest learning rate so far, as
    in the published code, so that the warmup counts for little.

    Attributes:
      beta: Share of x in y.
    """

    beta: float

    def init(self, params: Params) -> Average:
        zero = jnp.zeros((), jnp.float32)
        return {"params": _copy(params), "weight_sum": zero, "max_learning_rate": zero}

    def gradient_params(self, average: Average, params: Params) -> Params:
        assert average is not None
        return _interpolate(params, average["params"], self.beta)

    def update(
        self,
        average: Average,
        params: Params,
        *,
        step: Int[Array, ""],
        learning_rate: Float[Array, ""],
    ) -> Average:
        assert average is not None
        highest = jnp.maximum(average["max_learning_rate"], learning_rate)
        weight = highest**2
        total = average["weight_sum"] + weight
        share = weight / jnp.where(total > 0, total, 1.0)
        return {
            "params": _interpolate(params, average["params"], 1 - share),
            "weight_sum": total,
            "max_learning_rate": highest,
        }


NO_AVERAGE = Averaging()


def averaging_of(optimizer: Any) -> Averaging:
    """The averaging of an optimizer of `train/optimizer.py`; those of optax have none."""
    return getattr(optimizer, "averaging", NO_AVERAGE)


def restart(average: Average, params: Params) -> Average:
    """The average of a run that starts from these parameters."""
    return None if average is None else {**average, "params": _copy(params)}


def _interpolate(params: Params, average: Params, share: float | Float[Array, ""]) -> Params:
    """A share of the average and the rest of the parameters."""
    return jax.tree.map(lambda new, old: share * old + (1 - share) * new, params, average)


def _copy(params: Params) -> Params:
    """A copy in memory of its own: a training step donates both."""
    return jax.tree.map(jnp.copy, params)
