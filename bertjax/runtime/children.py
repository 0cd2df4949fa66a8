"""Supervise child processes with one polling loop: forward signals, leave no child running."""

import signal
import subprocess
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

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
        # Only sets flags: `poll` knows every child, a handler may interrupt `start`.
        self._kill = self._kill or (self.signal is not None and number == signal.SIGINT)
        self.signal = self.signal or number


def describe_exit(status: int) -> str:
    """`exit status 2`, or the name of the signal that ended a process."""
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
