"""The training loop of pretraining and fine-tuning, and the feed that puts batches on devices.

Steps are dispatched asynchronously: the metrics of a step are read a few steps later, so that the
device never waits for the host. Hooks receive the metrics of all steps up to a step before a hook
receives its state: metrics are on disk before the checkpoint.
"""

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.interfaces import Batch, extent
from bertjax.runtime.interrupt import EvaluationStoppedError, Interrupt
from bertjax.train.hooks import Hook, Run
from bertjax.train.report import Work
from bertjax.train.sharding import to_global

STEPS_IN_FLIGHT = 2


class Batches(Protocol):
    """Yields (steps done before it, batch on the devices), from the state's own step on."""

    wait_seconds: float
    """Total time that the loop has waited for batches."""

    def __iter__(self) -> Iterator[tuple[int, Any]]: ...


def train(
    state: Any,
    batches: Batches,
    train_step: Callable[[Any, Any], tuple[Any, Mapping[str, jax.Array]]],
    hooks: Iterable[Hook],
    *,
    num_train_steps: int,
    interrupt: Interrupt | None = None,
    restored: Mapping[str, Any] | None = None,
) -> Any:
    """Trains until `num_train_steps` steps are done, or until it is interrupted.

    An evaluation that is interrupted has no results: the checkpoint of its step is saved without
    them, and a run that resumes from it repeats the evaluation before its first step.

    Args:
      state: Anything with a `step`, the number of steps done. It is donated: `train_step` may
        reuse its memory.
      batches: See `Batches`.
      train_step: (state, batch) -> (next state, metrics); jitted.
      hooks: Called in this order: those that evaluate must precede the one that saves.
      num_train_steps: The step to end at, counted from the first step of the run, unless a hook
        lowers `Run.num_train_steps`.
      interrupt: Requests the loop to stop after a step, or an evaluation after a batch.
      restored: State dicts of hooks in the checkpoint that the state was restored from.

    Returns:
      The state after the last step; `interrupt.stopped` is whether it was interrupted.
    """
    run = Run(tuple(hooks), batches, num_train_steps, first_step=int(state.step))
    interrupt = interrupt or Interrupt()
    in_flight = collections.deque()
    with contextlib.ExitStack() as open_hooks:
        for hook in run.hooks:
            open_hooks.callback(hook.close)
            hook.on_train_begin(run, state, (restored or {}).get(hook.name, {}))
        ending = "complete" if run.step >= run.num_train_steps else None
        is_missing = any(hook.is_missing(run.step, ending) for hook in run.hooks)
        if is_missing and _end_step(run, state, in_flight, ending):
            return state
        for before, batch in batches if run.step < run.num_train_steps else ():
            run.count_stall(in_flight[-1][1] if in_flight else {})
            if before != run.step:
                raise ValueError(f"got the batch of step {before}, expected that of {run.step}")
            with run.count_compilation():
                state, metrics = train_step(state, batch)
            run.step = before + 1
            in_flight.append((run.step, metrics))
            ending = _reason_to_end(run.step, run.num_train_steps, interrupt)
            if _end_step(run, state, in_flight, ending):
                return state
        if run.step < run.num_train_steps:
            raise ValueError(f"batches ended after step {run.step} of {run.num_train_steps}")
    return state


def _reason_to_end(step: int, num_train_steps: int, interrupt: Interrupt) -> str | None:
    """The reason why this step is the last one, or None."""
    if step >= num_train_steps:
        return "complete"
    return "interrupted" if interrupt.should_stop() else None


def _end_step(run: Run, state: Any, in_flight: collections.deque, ending: str | None) -> str | None:
    """Calls the hooks after a step; returns `ending`, which they may have changed.

    Args:
      run: The loop.
      state: The state after the step.
      in_flight: Metrics that hooks have not received.
      ending: The reason why this step is the last one, or None.
    """
    due = [hook.due(run.step, ending) for hook in run.hooks]
    # The first metrics start the clock of `Report`; a step done before that has no time.
    is_awaited = any(due) or ending or run.step == run.first_step + 1
    _pass_metrics(run, in_flight, leave=0 if is_awaited else STEPS_IN_FLIGHT)
    expected = ending
    for hook, is_due in zip(run.hooks, due, strict=True):
        # An earlier hook may have made this step the last one.
        if ending != expected:
            is_due = hook.due(run.step, ending)
        if is_due:
            try:
                with run.timed(hook):
                    hook.on_step(run.step, state)
            except EvaluationStoppedError:
                ending = "interrupted"
        if ending is None and run.step >= run.num_train_steps:
            ending = "complete"
    return ending


def _pass_metrics(run: Run, in_flight: collections.deque, *, leave: int) -> None:
    """Reads the metrics of all but the newest steps and passes them to the hooks."""
    while len(in_flight) > leave:
        step, metrics = in_flight.popleft()
        values = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
        for hook in run.hooks:
            hook.on_metrics(step, values)


class Feed:
    """Places batches on a mesh and counts their tokens and FLOPs.

    Args:
      batches: (step, this host's rows of its batch).
      mesh: The devices.
      flops: FLOPs of the model for a step on a batch of this shape, (B, L).
      stamp: Adds keys to a batch on the devices, when the loop takes it.

    Attributes:
      wait_seconds: Total time spent on building and placing batches.
    """

    def __init__(
        self,
        batches: Iterable[tuple[int, Mapping[str, np.ndarray]]],
        mesh: Mesh,
        flops: Callable[[tuple[int, ...]], float] = lambda shape: 0.0,
        stamp: Callable[[Batch], Batch] = lambda batch: batch,
    ):
        self._batches, self._mesh, self._flops, self._stamp = batches, mesh, flops, stamp
        self._shapes: dict[int, tuple[int, ...]] = {}
        self.wait_seconds = 0.0

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        start = time.monotonic()
        for before, rows in self._batches:
            batch = self._stamp(to_global(rows, self._mesh))
            self._shapes[before + 1] = extent(batch)
            self.wait_seconds += time.monotonic() - start
            yield before, batch
            start = time.monotonic()

    def work(self, step: int) -> Work:
        """Tokens and FLOPs of the batch of a step; called once for each step."""
        shape = self._shapes.pop(step)
        return Work(tokens=math.prod(shape), flops=self._flops(shape))
