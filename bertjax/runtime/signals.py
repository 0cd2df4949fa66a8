"""Handle signals immediately, also while the main thread compiles.

Python runs a signal handler in the main thread, between two bytecodes: not before a call into XLA
returns, which takes minutes for a large model. The signal's number is written to the file
descriptor of `signal.set_wakeup_fd` immediately, where a thread reads it.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT

_SHOW_CURSOR = "\x1b[?25h"
_SECONDS_TO_HANDLE = 1.0
_SECONDS_TO_RAISE_AGAIN = 0.05


class SignalWatch:
    """A context manager that calls a function in a thread as soon as a signal is received.

    Only signals with a handler in Python are reported. Watches nest: the innermost one is called.
    Outside of the main thread, the only one that may install handlers, it does nothing.

    Args:
      on_signals: Called with the numbers of the signals, one byte each.
    """

    def __init__(self, on_signals: Callable[[bytes], None]):
        self._on_signals = on_signals
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
            self._on_signals(numbers)


def write_stderr(line: str) -> None:
    """Print a line on standard error, bypassing its buffer, whose lock the main thread may hold."""
    with contextlib.suppress(OSError):
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}{line}\n".encode())


def exit_now(name: str) -> None:
    """End the process without cleanup, which is safe because all files are written atomically."""
    write_stderr(f"{name}: interrupted")
    os._exit(INTERRUPTED)


class ControlC:
    """A context manager that ends a command on Ctrl-C, unless the command handles Ctrl-C itself.

    Ctrl-C raises KeyboardInterrupt in the main thread. That alone is not enough: Python raises it
    only after a call into XLA has returned, and ignores it in callbacks such as that of JAX for the
    garbage collector, often the first Python code to run then. A second Ctrl-C ends a process that
    is still inside XLA.

    Attributes:
      pressed: Whether Ctrl-C was pressed.

    Args:
      name: Name of the command, for the message.
    """

    def __init__(self, name: str):
        self.pressed = False
        self._name = name
        self._handled, self._warned = threading.Event(), False
        self._again: threading.Timer | None = None
        self._simulated = 0
        self._watch = SignalWatch(self._on_signals)

    def __enter__(self) -> "ControlC":
        self._installed = (
            threading.current_thread() is threading.main_thread()
            # Background jobs of a shell ignore Ctrl-C, and continue to.
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._installed:
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._handle_unraisable
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
            # Modules written in C print a traceback or crash if their import is interrupted.
            self._raise_later()
            return
        self._handled.set()
        raise KeyboardInterrupt

    def _handle_unraisable(self, unraisable) -> None:
        """Raise a KeyboardInterrupt that Python ignored in a callback again, after it returned."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._unraisable(unraisable)
        else:
            self._raise_later()

    def _raise_later(self) -> None:
        def simulate() -> None:
            self._simulated += 1
            # A real signal, because it also interrupts a blocking read.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        self._again = threading.Timer(_SECONDS_TO_RAISE_AGAIN, simulate)
        self._again.daemon = True
        self._again.start()

    def _on_signals(self, numbers: bytes) -> None:
        pressed = numbers.count(signal.SIGINT)
        simulated = min(pressed, self._simulated)
        self._simulated -= simulated
        if pressed == simulated or signal.getsignal(signal.SIGINT) != self._raise:
            return
        if self._warned and not self._handled.is_set():
            exit_now(self._name)
        if self._handled.wait(_SECONDS_TO_HANDLE):
            self._handled.clear()
            return
        self._warned = True
        write_stderr(
            f"{self._name}: stopping once compilation or loading has finished; press Ctrl-C again "
            "to stop now"
        )


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the frame is inside the import of a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raises KeyboardInterrupt at SIGTERM as well, so that `finally` and `with` blocks run."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
