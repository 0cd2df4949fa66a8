"""Stop a run on Ctrl-C or SIGTERM, after the same step or evaluation batch on every host."""

import collections
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

import jax
import numpy as np

from bertjax.runtime import signals

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STEPS_TO_AGREE = 2

Item = TypeVar("Item")


class EvaluationStoppedError(Exception):
    """An evaluation was stopped before its end; it has no results."""


class Interrupt:
    """A context manager that turns Ctrl-C and SIGTERM into a request to stop.

    Training stops after the step, evaluations after the batch that is running.

    A second Ctrl-C ends the process at once. On exit the previous signal handlers are restored.

    Attributes:
      signal: The number of the signal that this process received, or None.
      stopped: Whether the loop stopped because of a signal, on this host or on another.
    """

    def __init__(self):
        self.signal: int | None = None
        self.stopped = False
        self._before: dict[int, Any] = {}
        self._pending_sums: collections.deque = collections.deque()
        self._sum_flags = None
        self._has_stepped = self._reported = False
        self._watch = signals.SignalWatch(self._on_signal_bytes)

    @property
    def exit_code(self) -> int:
        """128 + the signal, as in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or signal.SIGTERM)

    def __enter__(self) -> "Interrupt":
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            self._watch.__enter__()
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            # None is a handler that was not installed from Python: it cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._before:
            self._watch.__exit__()
        self._before = {}

    def should_stop(self) -> bool:
        """Whether to stop now; call this once per step or evaluation batch, on every host.

        With several hosts, the flags of all hosts are summed over all devices. The sum is queued
        after the step and read two calls later: no host waits. As all hosts have the same steps and
        evaluation batches, all stop at the same one.
        """
        self._has_stepped = True
        if jax.process_count() == 1:
            self.stopped = self.signal is not None
            return self.stopped
        self._pending_sums.append(self._sum_over_hosts())
        if len(self._pending_sums) > _STEPS_TO_AGREE:
            self.stopped = bool(np.asarray(self._pending_sums.popleft()))
        return self.stopped

    def stoppable(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yields the batches of an evaluation, of which every host must have the same number.

        Raises:
          EvaluationStoppedError: a stop was requested before the last batch.
        """
        for batch in batches:
            if self.should_stop():
                raise EvaluationStoppedError
            yield batch

    def _handle(self, number: int, _: FrameType | None) -> None:
        """Runs in the main thread, between two bytecodes: maybe long after `_on_signal_bytes`."""
        self.signal = self.signal or number
        # From here on a Ctrl-C is handled by the kernel, which ends the process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _on_signal_bytes(self, numbers: bytes) -> None:
        """Runs in the thread of `SignalWatch`, immediately."""
        for number in numbers:
            if number not in _SIGNALS:
                continue
            if not self._reported:
                self._reported, self.signal = True, self.signal or number
                first = "" if self._has_stepped else " once XLA has compiled it"
                name = signal.Signals(number).name
                signals.write_stderr(
                    f"{name}: finishing this step{first} and saving; press Ctrl-C again to stop now"
                )
            elif number == signal.SIGINT:
                # Not at a second SIGTERM: a scheduler and a shell may both forward the same one.
                signals.exit_now("bertjax")

    def _sum_over_hosts(self) -> jax.Array:
        if self._sum_flags is None:
            mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("devices",))
            sharded = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
            replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            self._sum_flags = jax.jit(lambda flags: flags.sum(), out_shardings=replicated), sharded
        sum_flags, sharded = self._sum_flags
        flags = np.full(jax.local_device_count(), self.signal is not None, np.int32)
        return sum_flags(jax.make_array_from_process_local_data(sharded, flags))
