"""Measuring a state on held-out examples: every example counts once."""

from collections.abc import Iterable, Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.interfaces import Params
from bertjax.train.sharding import to_global
from bertjax.train.step import EvalStep


def evaluate(
    eval_step: EvalStep, params: Params, batches: Iterable[Mapping[str, np.ndarray]], mesh: Mesh
) -> dict[str, float]:
    """Means over all examples of all batches, by name.

    Args:
      eval_step: Gives sums and weights.
      params: Of the state to be measured.
      batches: Host batches; the padding of a short last one has `example_weight` 0.
      mesh: Where the batches go.
    """
    totals: dict[str, np.ndarray] = {}
    for batch in batches:
        sums = jax.device_get(eval_step(params, to_global(batch, mesh)))
        for name, (value, weight) in sums.items():
            # float64 on the host: thousands of batches add up without loss.
            totals[name] = totals.get(name, 0) + np.array([value, weight], np.float64)
    return {name: float(value / max(weight, 1e-6)) for name, (value, weight) in totals.items()}
