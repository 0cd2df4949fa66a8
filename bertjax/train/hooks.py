"""Hooks of the training loop, called after every step: evaluation, checkpoints, watchdog.

`Watchdog` prints the stacks of all threads if a step takes too long. The number of programs that
were compiled, or loaded from JAX's compilation cache, is counted too.
"""

import contextlib
import dataclasses
import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from bertjax.errors import UserError
from bertjax.train.checkpoint.manager import Checkpoints

_EVENT = "/jax/core/compile/backend_compile_duration"

_heard = 0


def count() -> int:
    """So many until now, those of other threads too."""
    return _heard


def _hear(event: str, seconds: float, **_) -> None:
    global _heard
    _heard += event == _EVENT


jax.monitoring.register_event_duration_secs_listener(_hear)


Values = Mapping[str, float]


@dataclasses.dataclass
class Run:
    """What hooks may know of the run that they serve.

    Attributes:
      hooks: all of them, in order.
      batches: where the batches come from; knows how long getting them has taken.
      num_train_steps: the step at which the run ends.
      first_step: steps done when this process began.
      step: steps begun by now.
      spent: seconds that hooks took to act, by their names.
      compile_seconds: time in which steps were compiled.
      stall_seconds: time spent waiting for batches while no step was running.
    """

    hooks: tuple["Hook", ...]
    batches: Any
    num_train_steps: int
    first_step: int
    step: int = dataclasses.field(init=False)
    spent: dict[str, float] = dataclasses.field(default_factory=dict)
    compile_seconds: float = 0.0
    stall_seconds: float = 0.0

    def __post_init__(self):
        self.step = self.first_step
        self._waited = 0.0

    def fetched(self, newest: Mapping[str, jax.Array]) -> None:
        """Counts the wait for a batch, unless the step that has these metrics is still running.

        It may have ended at any moment of the wait, which counts whole.
        """
        before, self._waited = self._waited, self.batches.wait_seconds
        if all(value.is_ready() for value in newest.values()):
            self.stall_seconds += self._waited - before

    def record(self, step: int, values: Values) -> None:
        """Hands measurements to every hook, to be shown, written and kept."""
        for hook in self.hooks:
            hook.recorded(step, values)

    def restored(self) -> dict[str, Any]:
        """What the hooks want to find again after a restart."""
        kept = {hook.name: hook.state_dict() for hook in self.hooks}
        return {name: content for name, content in kept.items() if content}

    @property
    def aside_seconds(self) -> float:
        """Time that no step was trained in, since hooks acted."""
        return sum(self.spent.values())

    @contextlib.contextmanager
    def timed(self, hook: "Hook") -> Iterator[None]:
        """Counts the time that a hook takes to act."""
        start = time.monotonic()
        yield
        self.spent[hook.name] = self.spent.get(hook.name, 0.0) + time.monotonic() - start

    @contextlib.contextmanager
    def beginning_step(self) -> Iterator[None]:
        """Counts the time until a step has begun, if it had to be compiled."""
        compiled, start = count(), time.monotonic()
        yield
        if count() > compiled:
            self.compile_seconds += time.monotonic() - start


class Hook:
    """Does nothing: a hook overrides what it needs."""

    @property
    def name(self) -> str:
        """Under which name a checkpoint keeps what the hook remembers."""
        return type(self).__name__

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        """Called before the first step, with what `state_dict` returned at the restored step."""

    def measured(self, step: int, values: Values) -> None:
        """Called for every step in turn, once its metrics are known."""

    def recorded(self, step: int, values: Values) -> None:
        """Called with what another hook, or this one, has to report."""

    def due(self, step: int, ending: str | None) -> bool:
        """Whether the hook requires to act on the state after this step.

        `ending` is "complete" or "interrupted" after the last step of this process, else None.
        """
        return False

    def on_step(self, step: int, state: Any) -> None:
        """Called where `due`, when everything up to this step has been measured."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values to be found again by `begin` after a restart."""
        return {}

    def close(self) -> None:
        """Called at the end, whatever the reason for it."""


class Evaluate(Hook):
    """Measures the state every `every` steps and at the end of the run.

    Args:
      every: how often; 0 for the end alone.
      evaluate: state -> metrics by name; where there are none, nothing is recorded.

    Attributes:
      newest: the last metrics; empty before the first.
    """

    def __init__(self, every: int, evaluate: Callable[[Any], Values]):
        self._every, self._evaluate = every, evaluate
        self.newest: Values = {}

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run

    def due(self, step: int, ending: str | None) -> bool:
        return ending == "complete" or bool(self._every and step % self._every == 0)

    def on_step(self, step: int, state: Any) -> None:
        self.newest = dict(self._evaluate(state))
        if self.newest:
            self._run.record(step, self.newest)


class SaveCheckpoints(Hook):
    """Saves the state every `every` steps, at the end, and when the run is interrupted.

    Args:
      every: how often; 0 for the end and interruptions alone.
      checkpoints: where to; it is closed with the hook.
    """

    def __init__(self, every: int, checkpoints: Checkpoints):
        self._every, self._checkpoints = every, checkpoints
        self._metrics: dict[str, float] = {}
        self._measured_at = 0

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run

    def recorded(self, step: int, values: Values) -> None:
        if step != self._measured_at:
            self._metrics, self._measured_at = {}, step
        self._metrics.update(values)

    def due(self, step: int, ending: str | None) -> bool:
        return ending is not None or bool(self._every and step % self._every == 0)

    def on_step(self, step: int, state: Any) -> None:
        metrics = self._metrics if self._measured_at == step else {}
        self._checkpoints.save(state, step=step, metrics=metrics, hooks=self._run.restored())

    def close(self) -> None:
        self._checkpoints.close()


class StopWhenNotFinite(Hook):
    """Stops a run in which several updates in a row were skipped.

    `train_step` leaves the parameters as they are when the loss or the gradient is not finite and
    reports `skipped` = 1. One such step is bad luck; a row of them is a run that goes nowhere.

    Args:
      limit: how many in a row are too many.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._in_a_row = 0

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._in_a_row = restored.get("in_a_row", 0)

    def measured(self, step: int, values: Values) -> None:
        self._in_a_row = self._in_a_row + 1 if values.get("skipped") else 0
        if self._in_a_row >= self._limit:
            first = step - self._in_a_row + 1
            raise UserError(
                f"the loss or its gradient was not finite in steps {first} to {step}, "
                f"{self._in_a_row} in a row, and none of these updates was made: lower "
                f"optimizer.learning_rate or lengthen its warmup"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": self._in_a_row} if self._in_a_row else {}


_LOOKS = 20


class Watchdog(Hook):
    """Writes the stacks of all threads to standard error when no step has ended for too long.

    Evaluating, saving and compiling count as waiting too. It does so in every process of a job, and
    again each time that as much time has passed; the run continues.

    Args:
      minutes: How long is too long; 0 for never.
    """

    def __init__(self, minutes: float):
        self._limit = 60 * minutes
        self._closed = threading.Event()

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._step, self._since = run.first_step, time.monotonic()
        if self._limit > 0:
            threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def measured(self, step: int, values: Values) -> None:
        self._step, self._since = step, time.monotonic()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        told = self._since
        while not self._closed.wait(self._limit / _LOOKS):
            now = time.monotonic()
            if now - max(told, self._since) >= self._limit:
                told = now
                print(
                    f"process {jax.process_index()}: no step has ended for "
                    f"{(now - self._since) / 60:.3g} minutes, the last was step {self._step:,}; "
                    "what every thread is doing:",
                    file=sys.__stderr__,
                    flush=True,
                )
                faulthandler.dump_traceback(sys.__stderr__)
