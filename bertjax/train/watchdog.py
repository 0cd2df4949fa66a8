"""Says what every thread is doing when a run seems to hang."""

import faulthandler
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax

from bertjax.train.hooks import Hook, Run, Values

_LOOKS = 20


class Watchdog(Hook):
    """Writes the stacks of all threads to standard error when no step has ended for too long.

    Evaluating, saving and compiling count as waiting too. It does so in every process of a job, and
    again each time that as much time has passed; the run goes on.

    Args:
      minutes: How long is too long; 0 for never.
    """

    def __init__(self, minutes: float):
        self._limit = 60 * minutes
        self._closed = threading.Event()

    def begin(self, run: Run, state: Any, remembered: Mapping[str, Any]) -> None:
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
