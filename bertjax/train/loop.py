"""The training loop of pretraining and fine-tuning, which differ in objectives and hooks.

Steps are dispatched asynchronously: the metrics of a step are read a few steps later, so that the
device never waits for the host. Before a hook gets the state of a step, hooks have got the metrics
of all steps up to it: metrics are on disk before the checkpoint is.
"""

import collections
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import jax

from bertjax.runtime.interrupt import Interrupt
from bertjax.train.hooks import Hook, Run

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

    Args:
      state: Anything with a `step`, the number of steps done. It is donated: `train_step` may
        reuse its memory.
      batches: See `Batches`.
      train_step: (state, batch) -> (next state, metrics); jitted.
      hooks: Called in this order: those that evaluate must precede the one that saves.
      num_train_steps: The step to end at, counted from the first step of the run.
      interrupt: Requests the loop to stop after a step.
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
        for before, batch in batches if run.step < num_train_steps else ():
            run.count_stall(in_flight[-1][1] if in_flight else {})
            if before != run.step:
                raise ValueError(f"got the batch of step {before}, expected that of {run.step}")
            with run.count_compilation():
                state, metrics = train_step(state, batch)
            run.step = before + 1
            in_flight.append((run.step, metrics))
            ending = _reason_to_end(run.step, num_train_steps, interrupt)
            due = [hook for hook in run.hooks if hook.due(run.step, ending)]
            _pass_metrics(run, in_flight, leave=0 if due or ending else STEPS_IN_FLIGHT)
            for hook in due:
                with run.timed(hook):
                    hook.on_step(run.step, state)
            if ending:
                return state
        if run.step < num_train_steps:
            raise ValueError(f"batches ended after step {run.step} of {num_train_steps}")
    return state


def _reason_to_end(step: int, num_train_steps: int, interrupt: Interrupt) -> str | None:
    """The reason why this step is the last one, or None."""
    if step >= num_train_steps:
        return "complete"
    return "interrupted" if interrupt.should_stop() else None


def _pass_metrics(run: Run, in_flight: collections.deque, *, leave: int) -> None:
    """Reads the metrics of all but the newest steps and passes them to the hooks."""
    while len(in_flight) > leave:
        step, metrics = in_flight.popleft()
        values = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
        for hook in run.hooks:
            hook.on_metrics(step, values)
