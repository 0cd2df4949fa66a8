"""Hooks of the training loop, called after every step: evaluation, checkpoints, watchdog.

`Watchdog` prints the stacks of all threads if a step takes too long. Compilations, and loads from
JAX's compilation cache, are detected, so that their time is counted separately.
"""

import contextlib
import contextvars
import dataclasses
import faulthandler
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from bertjax.errors import UserError
from bertjax.train.checkpoint.manager import Checkpoints

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"

_num_compilations = 0

_before_compilation: contextvars.ContextVar[Callable[[], None]] = contextvars.ContextVar(
    "_before_compilation"
)
"""Called when a program has been lowered, before it is compiled."""


def _on_event(event: str, seconds: float, **_) -> None:
    global _num_compilations
    _num_compilations += event == _COMPILED
    if event == _LOWERED and (call := _before_compilation.get(None)):
        call()


jax.monitoring.register_event_duration_secs_listener(_on_event)


Values = Mapping[str, float]


@dataclasses.dataclass
class Run:
    """The state of the loop, which hooks can read.

    Attributes:
      hooks: All hooks, in order.
      batches: The source of batches, with `wait_seconds`.
      num_train_steps: The step at which the run ends.
      first_step: Steps done when this process started.
      step: Steps dispatched.
      seconds_by_hook: Time in `on_step`, by name of the hook.
      compile_seconds: Time of dispatching steps, including their compilation, where one was needed.
      stall_seconds: Time spent waiting for batches while no step was running.
      seconds_left: Time of training after which the run ends, at the latest.
    """

    hooks: tuple["Hook", ...]
    batches: Any
    num_train_steps: int
    first_step: int
    step: int = dataclasses.field(init=False)
    seconds_by_hook: dict[str, float] = dataclasses.field(default_factory=dict)
    compile_seconds: float = 0.0
    stall_seconds: float = 0.0
    seconds_left: float = math.inf

    def __post_init__(self):
        self.step = self.first_step
        self._waited = 0.0
        self._is_compiling = False

    def count_stall(self, newest: Mapping[str, jax.Array]) -> None:
        """Counts the last wait for a batch, unless the step with these metrics is still running.

        The step may have ended at any moment of the wait; the whole wait is counted then.
        """
        before, self._waited = self._waited, self.batches.wait_seconds
        if all(value.is_ready() for value in newest.values()):
            self.stall_seconds += self._waited - before

    def record(self, step: int, values: Values) -> None:
        """Passes metrics to `on_record` of every hook."""
        for hook in self.hooks:
            hook.on_record(step, values)

    def hook_states(self) -> dict[str, Any]:
        """The state dicts of all hooks, by name, as a checkpoint stores them."""
        states = {hook.name: hook.state_dict() for hook in self.hooks}
        return {name: state for name, state in states.items() if state}

    @property
    def hook_seconds(self) -> float:
        """Total time in `on_step` of all hooks."""
        return sum(self.seconds_by_hook.values())

    @contextlib.contextmanager
    def timed(self, hook: "Hook") -> Iterator[None]:
        """Adds the time of the block to that of a hook."""
        start = time.monotonic()
        try:
            yield
        finally:
            before = self.seconds_by_hook.get(hook.name, 0.0)
            self.seconds_by_hook[hook.name] = before + time.monotonic() - start

    @contextlib.contextmanager
    def count_compilation(self) -> Iterator[None]:
        """Adds the time of the block to `compile_seconds` if a program was compiled in it.

        For the first step of this process, calls `on_compile_begin` and `on_compile_end` of hooks.
        """
        before, start = _num_compilations, time.monotonic()
        token = _before_compilation.set(self._begin_compilation)
        try:
            yield
        finally:
            _before_compilation.reset(token)
        if _num_compilations > before:
            self.compile_seconds += time.monotonic() - start
        if self._is_compiling:
            self._is_compiling = False
            for hook in self.hooks:
                hook.on_compile_end(time.monotonic() - start)

    def _begin_compilation(self) -> None:
        if self.step == self.first_step and not self._is_compiling:
            self._is_compiling = True
            for hook in self.hooks:
                hook.on_compile_begin()


class Hook:
    """Base class of hooks; every method does nothing."""

    @property
    def name(self) -> str:
        """The key of the hook's state in a checkpoint."""
        return type(self).__name__

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        """Called before the first step, with the `state_dict` of the restored step, or {}."""

    def on_compile_begin(self) -> None:
        """Called before the first step of this process is compiled, unless it already is."""

    def on_compile_end(self, seconds: float) -> None:
        """Called after `on_compile_begin`, when the step is compiled, with the time it took."""

    def on_metrics(self, step: int, values: Values) -> None:
        """Called for every step in order, once its metrics are available."""

    def on_record(self, step: int, values: Values) -> None:
        """Called with the metrics that any hook records."""

    def due(self, step: int, ending: str | None) -> bool:
        """Whether `on_step` is to be called after this step.

        `ending` is "complete" or "interrupted" after the last step of this process, else None.
        """
        return False

    def on_step(self, step: int, state: Any) -> None:
        """Called where `due`, after `on_metrics` of all steps up to this one.

        Raises:
          EvaluationStoppedError: a signal stopped it; the run ends after this step.
        """

    def is_missing(self, step: int, ending: str | None) -> bool:
        """Whether results of the step that a run resumes from are missing in its checkpoint.

        Then the step's `on_step` of all hooks that are due is called before training resumes.
        """
        return False

    def state_dict(self) -> dict[str, Any]:
        """JSON values for the checkpoint, which `on_train_begin` receives after a restart."""
        return {}

    def close(self) -> None:
        """Called when the loop ends, for any reason."""


class Evaluate(Hook):
    """Evaluates the state every `every` steps and at the end of the run.

    Not when the run is interrupted: the machine may be shut down soon. A resumed run evaluates the
    state of its checkpoint if that has no results.

    Args:
      every: Steps between evaluations; 0 for the end alone.
      evaluate: state -> metrics by name; empty metrics are not recorded.

    Attributes:
      newest: The last metrics, also of an earlier process; empty before the first.
    """

    def __init__(self, every: int, evaluate: Callable[[Any], Values]):
        self._every, self._evaluate = every, evaluate
        self._newest_step = 0
        self.newest: Values = {}

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run
        self._newest_step, self.newest = restored.get("step", 0), restored.get("metrics", {})

    def due(self, step: int, ending: str | None) -> bool:
        if ending is not None:
            return ending == "complete"
        return bool(self._every and step % self._every == 0)

    def on_step(self, step: int, state: Any) -> None:
        self.newest = dict(self._evaluate(state))
        self._newest_step = step
        if self.newest:
            self._run.record(step, self.newest)

    def is_missing(self, step: int, ending: str | None) -> bool:
        return step != self._newest_step and self.due(step, ending)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._newest_step, "metrics": self.newest}


class SaveCheckpoints(Hook):
    """Saves the state at intervals, at the end, and when the run is interrupted.

    Args:
      intervals: Steps between checkpoints; at every multiple of any of them one is saved. Zeros
        are ignored.
      checkpoints: The checkpoints of the run; closed with the hook.
    """

    def __init__(self, intervals: Sequence[int], checkpoints: Checkpoints):
        self._intervals = [interval for interval in intervals if interval]
        self._checkpoints = checkpoints
        self._metrics: dict[str, float] = {}
        self._measured_at = 0

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run

    def on_record(self, step: int, values: Values) -> None:
        if step != self._measured_at:
            self._metrics, self._measured_at = {}, step
        self._metrics.update(values)

    def due(self, step: int, ending: str | None) -> bool:
        return ending is not None or any(step % interval == 0 for interval in self._intervals)

    def on_step(self, step: int, state: Any) -> None:
        metrics = self._metrics if self._measured_at == step else {}
        self._checkpoints.save(state, step=step, metrics=metrics, hooks=self._run.hook_states())

    def close(self) -> None:
        self._checkpoints.close()


class StopWhenNotFinite(Hook):
    """Stops a run after several skipped updates in a row.

    `train_step` leaves the parameters unchanged when the loss or the gradient is not finite and
    reports `skipped` = 1.

    Args:
      limit: Number of consecutive skipped updates at which the run stops.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._in_a_row = 0

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._in_a_row = restored.get("in_a_row", 0)

    def on_metrics(self, step: int, values: Values) -> None:
        self._in_a_row = self._in_a_row + 1 if values.get("skipped") else 0
        if self._in_a_row >= self._limit:
            first = step - self._in_a_row + 1
            raise UserError(
                f"the loss or its gradient was not finite in steps {first} to {step}, "
                f"{self._in_a_row} in a row, whose updates were skipped; lower "
                f"config.optimizer.learning_rate or raise warmup_steps"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": self._in_a_row} if self._in_a_row else {}


_CHECKS_PER_LIMIT = 20


class Watchdog(Hook):
    """Prints the stacks of all threads to standard error when no step has ended for too long.

    Time of evaluation, checkpoints and compilation counts as well. Every process of a job prints,
    and repeats it each time the limit has passed again; the run continues.

    Args:
      minutes: The limit; 0 for none.
    """

    def __init__(self, minutes: float):
        self._limit = 60 * minutes
        self._closed = threading.Event()

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._step, self._since = run.first_step, time.monotonic()
        if self._limit > 0:
            threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def on_metrics(self, step: int, values: Values) -> None:
        self._step, self._since = step, time.monotonic()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        printed = self._since
        while not self._closed.wait(self._limit / _CHECKS_PER_LIMIT):
            now = time.monotonic()
            if now - max(printed, self._since) >= self._limit:
                printed = now
                print(
                    f"process {jax.process_index()}: no step has ended for "
                    f"{(now - self._since) / 60:.3g} minutes, the last was step {self._step:,}; "
                    "stacks of all threads:",
                    file=sys.__stderr__,
                    flush=True,
                )
                faulthandler.dump_traceback(sys.__stderr__)
