"""Evaluate a state on held-out examples, and collect predictions, each example exactly once."""

import collections
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, Num

from bertjax.interfaces import Batch, Params
from bertjax.pretrainer import Pretrainer
from bertjax.train.sharding import to_global
from bertjax.train.step import EvalStep

HELD_OUT = "held_out/"
"""Prefix of the names of metrics on held-out text."""


def evaluate(
    eval_step: EvalStep, params: Params, batches: Iterable[Mapping[str, np.ndarray]], mesh: Mesh
) -> dict[str, float]:
    """Evaluates all batches; returns the mean of each metric over all examples.

    Args:
      eval_step: Computes sums and weights.
      params: Parameters.
      batches: Host batches; the padding of a short last one has `example_weight` 0.
      mesh: The devices.
    """
    totals: dict[str, np.ndarray] = {}
    for batch in batches:
        sums = jax.device_get(eval_step(params, to_global(batch, mesh)))
        for name, (value, weight) in sums.items():
            # float32 sums over thousands of batches would be inaccurate.
            totals[name] = totals.get(name, 0) + np.array([value, weight], np.float64)
    return {name: float(value / max(weight, 1e-6)) for name, (value, weight) in totals.items()}


PredictStep = Callable[[Params, Batch], jax.Array]
NumberedBatches = Iterable[tuple[Int[np.ndarray, " B"], Mapping[str, np.ndarray]]]


def make_predict_step(pretrainer: Pretrainer, mesh: Mesh) -> PredictStep:
    """Builds the jitted (params, batch) -> predictions of the task, replicated on every host."""

    def predict_step(params: Params, batch: Batch) -> jax.Array:
        return pretrainer.apply({"params": params}, batch, method="predict")

    return jax.jit(predict_step, out_shardings=NamedSharding(mesh, PartitionSpec()))


def predict(
    predict_step: PredictStep,
    params: Params,
    batches: NumberedBatches,
    num_examples: int,
    mesh: Mesh,
) -> np.ndarray:
    """Predicts all examples; returns predictions in the order of the examples' numbers.

    Args:
      predict_step: See `make_predict_step`.
      params: Parameters.
      batches: (numbers of the examples of the global batch, negative for padding; this host's
        rows of it).
      num_examples: Total number; each must be in exactly one batch.
      mesh: The devices.

    Raises:
      ValueError: an example was missing or repeated.
    """
    numbers, values, in_flight = [], [], collections.deque()
    for batch_numbers, batch in batches:
        numbers.append(batch_numbers)
        in_flight.append(predict_step(params, to_global(batch, mesh)))
        # Results are read one batch late: the device computes while the next batch is built.
        if len(in_flight) > 1:
            values.append(np.asarray(in_flight.popleft()))
    values += map(np.asarray, in_flight)
    return _sort_by_number(
        np.concatenate(numbers), np.concatenate(_pad_lengths(values)), num_examples
    )


def _pad_lengths(values: list[Num[np.ndarray, "B *more"]]) -> list[Num[np.ndarray, "B *more"]]:
    """Pads token predictions with -1 to the length of the longest batch."""
    if values[0].ndim == 1:
        return values
    max_length = max(rows.shape[1] for rows in values)

    def pad(rows: np.ndarray) -> np.ndarray:
        missing = [(0, 0)] * rows.ndim
        missing[1] = (0, max_length - rows.shape[1])
        return np.pad(rows, missing, constant_values=-1)

    return [pad(rows) for rows in values]


def _sort_by_number(
    numbers: Int[np.ndarray, " n"], values: Num[np.ndarray, "n *more"], num_examples: int
) -> Num[np.ndarray, "N *more"]:
    real = numbers >= 0
    order = np.argsort(numbers[real], kind="stable")
    if not np.array_equal(numbers[real][order], np.arange(num_examples)):
        raise ValueError(f"got {real.sum()} predictions, expected one for each of {num_examples}")
    return values[real][order]
