"""Stop a run after the current step on Ctrl-C or SIGTERM: at the same step on every host."""

import collections
import signal
import threading
from types import FrameType
from typing import Any

import jax
import numpy as np

from bertjax.runtime import signals

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STEPS_TO_AGREE = 2


class Interrupt:
    """Turns signals into a wish to stop; a second Ctrl-C ends the process at once.

    Use it as a context manager: signals are handled as before outside of it.

    Attributes:
      signal: the number of the signal that came to this process, else None.
      stopped: whether the loop stopped because of it, or of one that came to another host.
    """

    def __init__(self):
        self.signal: int | None = None
        self.stopped = False
        self._before: dict[int, Any] = {}
        self._agreeing: collections.deque = collections.deque()
        self._any_of = None
        self._has_stepped = self._told = False
        self._watch = signals.SignalWatch(self._arrived)

    @property
    def exit_code(self) -> int:
        """128 + the signal, as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or signal.SIGTERM)

    def __enter__(self) -> "Interrupt":
        # Python allows handlers in the main thread alone.
        if threading.current_thread() is threading.main_thread():
            self._watch.__enter__()
            self._before = {number: signal.signal(number, self._came) for number in _SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not installed from Python: it cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._before:
            self._watch.__exit__()
        self._before = {}

    def should_stop(self) -> bool:
        """Whether to stop now: asked once after every step, on every host.

        On several hosts each brings its own answer to a sum over all devices, which is queued
        behind the step and read some steps later: no host waits, and all stop at the same step.
        """
        self._has_stepped = True
        if jax.process_count() == 1:
            self.stopped = self.signal is not None
            return self.stopped
        self._agreeing.append(self._sum_over_hosts())
        if len(self._agreeing) > _STEPS_TO_AGREE:
            self.stopped = bool(np.asarray(self._agreeing.popleft()))
        return self.stopped

    def _came(self, number: int, _: FrameType | None) -> None:
        """Runs in the main thread, between two bytecodes: maybe long after `_arrived`."""
        self.signal = self.signal or number
        # From here on the kernel itself ends the process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _arrived(self, numbers: bytes) -> None:
        """Runs in a thread of its own, at once."""
        for number in numbers:
            if number not in _SIGNALS:
                continue
            if not self._told:
                self._told, self.signal = True, self.signal or number
                first = "" if self._has_stepped else " once XLA has compiled it"
                name = signal.Signals(number).name
                signals.write_stderr(
                    f"{name}: finishing this step{first} and saving; Ctrl-C stops at once"
                )
            elif number == signal.SIGINT:
                # Not at a second SIGTERM: schedulers and shells may each pass on the same one.
                signals.exit_now("bertjax")

    def _sum_over_hosts(self) -> jax.Array:
        if self._any_of is None:
            mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("devices",))
            spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
            everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            self._any_of = jax.jit(lambda flags: flags.sum(), out_shardings=everywhere), spread
        add, spread = self._any_of
        flags = np.full(jax.local_device_count(), self.signal is not None, np.int32)
        return add(jax.make_array_from_process_local_data(spread, flags))
