"""Averages of weights over steps: evaluation, export and fine-tuning use them if a run has one.

A training state then has two sets of weights: `params`, which the optimizer updates, and an
average, which checkpoints store as `average/params`. The averaging also determines the weights at
which the gradient is computed: a schedule-free optimizer computes it between the two.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from bertjax.constraints import Relation
from bertjax.interfaces import Params

Average = Mapping[str, Any] | None
"""The average as `params`, and other state of the algorithm; None without averaging."""


RELATIONS = (
    Relation(
        ("lawa_every", "lawa_window"),
        lambda every, window: bool(every) == bool(window),
        "both or neither",
        "set both, or leave out both",
    ),
    Relation(
        ("ema_decay", "lawa_every"),
        lambda decay, every: not (decay and every),
        "one average of the weights",
        "set one of them to 0",
    ),
)
"""Relations between the fields of `config.optimizer` that choose an average."""


class DoneStep(NamedTuple):
    """A training step after its update.

    Attributes:
      number: Number of the step, from 0.
      learning_rate: Learning rate of the step.
      finite: Whether it changed the parameters; an update that is not finite is skipped.
    """

    number: Int[Array, ""]
    learning_rate: Float[Array, ""]
    finite: Bool[Array, ""]


class Averaging:
    """No average: the parameters themselves are evaluated."""

    def init(self, params: Params) -> Average:
        """The average before the first step."""
        return None

    def gradient_params(self, average: Average, params: Params) -> Params:
        """The weights at which the gradient of a step is computed."""
        return params

    def update(self, average: Average, params: Params, step: DoneStep) -> Average:
        """The average after a step.

        Args:
          average: The average before the step.
          params: The parameters after the step.
          step: The step.
        """
        return None


@dataclasses.dataclass(frozen=True)
class ExponentialMovingAverage(Averaging):
    """Exponential moving average (Polyak & Juditsky 1992; Tarvainen & Valpola 2017, section 2).

    In early steps the decay is lower, min(decay, (1 + t) / (10 + t)) in step t as in TensorFlow's
    `ExponentialMovingAverage`, to remove the random initialisation from the average.

    Attributes:
      decay: Weight of the average before a step.
    """

    decay: float

    def init(self, params: Params) -> Average:
        return {"params": _copy(params)}

    def update(self, average: Average, params: Params, step: DoneStep) -> Average:
        assert average is not None
        decay = jnp.minimum(self.decay, (1 + step.number) / (10 + step.number))
        return _where(
            step.finite, {"params": _interpolate(params, average["params"], decay)}, average
        )


@dataclasses.dataclass(frozen=True)
class ScheduleFree(Averaging):
    """The averaging of schedule-free optimizers (Defazio et al. 2024, section 2).

    The optimizer updates z (`params`), x is a weighted average of all z, and gradients are computed
    at y, between the two. The weight of a z is the square of the highest learning rate so far, as
    in the published code, so that the warmup has little weight.

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

    def update(self, average: Average, params: Params, step: DoneStep) -> Average:
        assert average is not None
        highest = jnp.maximum(average["max_learning_rate"], step.learning_rate)
        weight = highest**2
        total = average["weight_sum"] + weight
        share = weight / jnp.where(total > 0, total, 1.0)
        following = {
            "params": _interpolate(params, average["params"], 1 - share),
            "weight_sum": total,
            "max_learning_rate": highest,
        }
        return _where(step.finite, following, average)


@dataclasses.dataclass(frozen=True)
class LatestWeightAveraging(Averaging):
    """Latest weight averaging (LAWA): the mean of the latest snapshots of the weights.

    Kaddour 2022, with a snapshot after each epoch; Sanyal et al. 2023, after a number of steps. The
    mean is of all snapshots as long as there are fewer than `window`; before the first it is the
    current weights. Which snapshot is replaced follows from the number of steps.

    Attributes:
      every: Steps between snapshots.
      window: Number of snapshots that are kept and averaged.
    """

    every: int
    window: int

    def init(self, params: Params) -> Average:
        # Separate trees: a new axis would have to be sharded.
        return {
            "params": _copy(params),
            "snapshots": tuple(_copy(params) for _ in range(self.window)),
        }

    def update(self, average: Average, params: Params, step: DoneStep) -> Average:
        assert average is not None
        done = step.number + 1
        taken = jnp.maximum(done // self.every, 1)  # with the one of this step
        newest, count = (taken - 1) % self.window, jnp.minimum(taken, self.window)

        def take(snapshots: tuple[Params, ...]) -> Average:
            snapshots = tuple(
                _where(newest == place, params, old) for place, old in enumerate(snapshots)
            )
            shares = (jnp.arange(self.window) < count) / count
            mean = jax.tree.map(lambda *leaves: sum(map(jnp.multiply, shares, leaves)), *snapshots)
            return {"params": mean, "snapshots": snapshots}

        # A step without a snapshot does not read the snapshots, which are larger than all else.
        is_due = (done % self.every == 0) | (done < self.every)
        return lax.cond(is_due, lambda: take(average["snapshots"]), lambda: dict(average))


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


def _where(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _copy(params: Params) -> Params:
    """A copy in separate memory: a training step donates both."""
    return jax.tree.map(jnp.copy, params)
