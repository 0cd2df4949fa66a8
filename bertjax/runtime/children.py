"""Supervise child processes with one polling loop, and divide the devices of this machine.

Signals are forwarded, and no child is left running. Children that run at the same time each get a
share of the GPUs or TPU chips, and of the cores.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

from bertjax.runtime import host

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SECONDS_BETWEEN_POLLS = 0.05


class Children:
    """The child processes of a command. A context manager, whose body calls `poll` in a loop.

    The first SIGINT or SIGTERM is forwarded to all children as SIGTERM: in a terminal, Ctrl-C
    reaches the children too, and a second SIGINT would end them before they have saved. A second
    SIGINT kills them. An exception in the body terminates them and waits for them.

    Attributes:
      signal: The first signal that this process received, or None.
      running: The children that have not ended.
    """

    def __init__(self):
        self.signal: int | None = None
        self.running: list[subprocess.Popen] = []
        self._forwarded = self._kill = False

    def __enter__(self) -> "Children":
        self._handlers = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type | None, _: BaseException | None, __: TracebackType | None):
        if kind is not None:
            for child in self.running:
                child.terminate()
            for child in self.running:
                child.wait()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen:
        """Starts a child; `options` are those of `subprocess.Popen`."""
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
        self.running.append(child)
        return child

    def poll(self) -> list[subprocess.Popen]:
        """Sleeps briefly, forwards signals, and returns the children that have ended since."""
        time.sleep(_SECONDS_BETWEEN_POLLS)
        if self.signal and not self._forwarded:
            self._forwarded = True
            for child in self.running:
                child.terminate()
        if self._kill:
            self.kill()
        ended = [child for child in self.running if child.poll() is not None]
        for child in ended:
            self.running.remove(child)
        return ended

    def kill(self) -> None:
        """Kills all children that are running."""
        for child in self.running:
            child.kill()

    def _handle(self, number: int, _: FrameType | None) -> None:
        # Only sets flags: a handler may interrupt `start`, whose child `running` does not have yet.
        self._kill = self._kill or (self.signal is not None and number == signal.SIGINT)
        self.signal = self.signal or number


def describe_exit(status: int) -> str:
    """`exit status 2`, or the name of the signal that ended a process."""
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name


def share_environment(
    variables: Mapping[str, str], share: int, num_shares: int, max_devices: int | None = None
) -> dict[str, str]:
    """Returns environment variables that restrict a process to its share of the GPUs or TPU chips.

    Args:
      variables: The environment of this process.
      share: Number of the share, from 0.
      num_shares: How many processes run at the same time.
      max_devices: Upper limit of GPUs a process; None for none.
    """
    variables = dict(variables)
    if num_shares == 1 or variables.get("JAX_PLATFORMS", "") == "cpu":
        return variables
    if gpus := _visible_gpus(variables):
        own = _slice(gpus, share, num_shares, max_devices)
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        processes_per_gpu = -(-num_shares // len(gpus))
        if processes_per_gpu > 1:
            # JAX preallocates three quarters of a GPU, which leaves no memory for a second process.
            fraction = f"{0.9 / processes_per_gpu:.2f}"
            variables.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction)
    elif chips := host.list_tpu_chips():
        (chip,) = _slice(chips, share, num_shares, 1)
        # libtpu requires all three for a process that has one chip of its host.
        variables["TPU_VISIBLE_DEVICES"] = chip
        variables["TPU_CHIPS_PER_PROCESS_BOUNDS"] = "1,1,1"
        variables["TPU_PROCESS_BOUNDS"] = "1,1,1"
    return variables


def _slice(devices: list[str], share: int, num_shares: int, limit: int | None) -> list[str]:
    """The devices of a share. All shares have the same size, so that all runs are equally fast."""
    size = min(max(1, len(devices) // num_shares), limit or len(devices))
    begin = share * size % len(devices)
    return devices[begin : begin + size]


def _visible_gpus(variables: Mapping[str, str]) -> list[str]:
    if visible := variables.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    return host.list_gpus()


def pin_cores(process: int, share: int, num_shares: int) -> None:
    """Restricts a process to its share of the cores, where the system supports CPU affinity.

    Args:
      process: Process id; threads that it has started keep their affinity.
      share: Number of the share, from 0.
      num_shares: How many processes run at the same time.
    """
    if num_shares == 1 or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    own = cores[share::num_shares] or [cores[share % len(cores)]]
    with contextlib.suppress(ProcessLookupError):  # the process may have ended
        os.sched_setaffinity(process, own)
