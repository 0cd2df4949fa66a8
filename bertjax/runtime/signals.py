"""Handle signals at once, also while the main thread compiles.

Python runs a signal handler in the main thread, between two bytecodes: not before a call into XLA
returns, which takes minutes for a large model. The file descriptor of `signal.set_wakeup_fd` gets
the signal's number immediately; a thread reads it.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT

_SHOW_CURSOR = "\x1b[?25h"
_SECONDS_TO_HANDLE = 1.0
_SECONDS_TO_RAISE_AGAIN = 0.05


class SignalWatch:
    """Calls a function in a thread as soon as signals arrive that have handlers in Python.

    A context manager. Watches nest: the innermost one is called. Outside of the main thread, which
    alone may have handlers, it does nothing.
    """

    def __init__(self, arrived: Callable[[bytes], None]):
        """Args:
        arrived: Gets the numbers of the signals, a byte each.
        """
        self._arrived = arrived
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "SignalWatch":
        if threading.current_thread() is threading.main_thread():
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        if self._thread is None:
            return
        signal.set_wakeup_fd(self._before)
        os.close(self._writer)
        self._thread.join()
        self._thread = None
        os.close(self._reader)

    def _watch(self) -> None:
        while numbers := os.read(self._reader, 64):
            self._arrived(numbers)


def write_stderr(line: str) -> None:
    """Prints a line on standard error without its buffer, whose lock the main thread may hold."""
    with contextlib.suppress(OSError):
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}{line}\n".encode())


def exit_now(name: str) -> None:
    """Ends the process without any cleanup: whatever it writes is there whole or not at all."""
    write_stderr(f"{name}: interrupted")
    os._exit(INTERRUPTED)


class ControlC:
    """Ends a command at Ctrl-C, whatever it is doing, unless it handles Ctrl-C itself.

    Ctrl-C raises KeyboardInterrupt in the main thread. That alone is not enough: it waits until XLA
    returns, and Python ignores it in callbacks such as JAX's for the garbage collector, often the
    first Python code that runs then. A second Ctrl-C ends a process that waits for XLA.

    Attributes:
      pressed: Whether Ctrl-C was pressed.
    """

    def __init__(self, name: str):
        """Args:
        name: Of the command, for the line that it prints.
        """
        self.pressed = False
        self._name = name
        self._handled, self._told = threading.Event(), False
        self._again: threading.Timer | None = None
        self._simulated = 0
        self._watch = SignalWatch(self._arrived)

    def __enter__(self) -> "ControlC":
        self._installed = (
            threading.current_thread() is threading.main_thread()
            # Background jobs of a shell ignore Ctrl-C: that stays so.
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._installed:
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._ignored
            self._watch.__enter__()
            signal.signal(signal.SIGINT, self._raise)
        return self

    def __exit__(self, *_) -> None:
        if self._installed:
            if self._again is not None:
                self._again.cancel()
                self._again.join()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._handled.set()
            self._watch.__exit__()
            sys.unraisablehook = self._unraisable

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        if _is_importing(frame):
            # Modules written in C print a traceback, or crash, where their import is interrupted.
            self._raise_later()
            return
        self._handled.set()
        raise KeyboardInterrupt

    def _ignored(self, unraisable) -> None:
        """Raises an interrupt again that Python ignored, once the callback has returned."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._unraisable(unraisable)
        else:
            self._raise_later()

    def _raise_later(self) -> None:
        def simulate() -> None:
            self._simulated += 1
            # A real signal, which also ends a read that waits for input.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        self._again = threading.Timer(_SECONDS_TO_RAISE_AGAIN, simulate)
        self._again.daemon = True
        self._again.start()

    def _arrived(self, numbers: bytes) -> None:
        pressed = numbers.count(signal.SIGINT)
        simulated = min(pressed, self._simulated)
        self._simulated -= simulated
        if pressed == simulated or signal.getsignal(signal.SIGINT) != self._raise:
            return
        if self._told and not self._handled.is_set():
            exit_now(self._name)
        if self._handled.wait(_SECONDS_TO_HANDLE):
            self._handled.clear()
            return
        self._told = True
        write_stderr(
            f"{self._name}: stopping once what compiles or loads is done; Ctrl-C stops at once"
        )


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported where the main thread is."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
