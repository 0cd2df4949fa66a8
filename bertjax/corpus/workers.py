"""Map a function over blocks in worker processes, with results in order and bounded memory.

The workers are new interpreters that read blocks from a pipe. Nothing is forked, so the parent may
use jax and threads; the parent's main module is not imported, as by a spawn of `multiprocessing`;
and if the parent ends, even by `kill -9`, the pipe is closed and the workers end too.
"""

import collections
import concurrent.futures
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

from bertjax.errors import UserError

Tag = TypeVar("Tag")

_BOOT = (
    "import sys; sys.path[:] = sys.argv[1:]; from bertjax.corpus import workers; "
    "workers.run_child()"
)
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerPool:
    """A pool of worker processes that call the function `make(*arguments)` on blocks.

    A process is started when there is a block for it. Use the pool as a context manager: on exit
    the processes are killed.

    Args:
      make: A function or class that a worker process can import; it returns the function to call.
      arguments: The arguments of `make`.
      count: Maximum number of processes; default: one per core.
    """

    def __init__(self, make: Callable[..., Callable], arguments: tuple, count: int | None = None):
        count = count or available_cores()
        self._setup = (make, arguments)
        self._children: list[_Child] = []
        self._starting = threading.Lock()
        self._is_closed = False
        # A LIFO queue, so that a slot without a process is used only if all processes are busy.
        self._slots: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        for _ in range(count):
            self._slots.put(None)
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "bertjax-workers")
        # Enough that no worker waits while the parent writes, few enough to bound memory.
        self._max_pending = 2 * count + 1

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_) -> None:
        with self._starting:
            self._is_closed = True
        for process in self._children:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._children:
            process.close()

    def imap(self, blocks: Iterable[tuple[Tag, Any]]) -> Iterator[tuple[Tag, Any]]:
        """Yield (tag, result) for every (tag, block), in the order of the blocks.

        Raises:
          UserError: The function raised it, or a worker process died.
          RuntimeError: The function raised another error; the message contains its traceback.
        """
        pending: collections.deque[tuple[Tag, concurrent.futures.Future]] = collections.deque()
        for tag, block in blocks:
            pending.append((tag, self._threads.submit(self._call, block)))
            while pending and (len(pending) > self._max_pending or pending[0][1].done()):
                tag, future = pending.popleft()
                yield tag, future.result()
        for tag, future in pending:
            yield tag, future.result()

    def _call(self, block: Any) -> Any:
        process = self._slots.get()
        try:
            process = process or self._start()
            return process.call(block)
        finally:
            self._slots.put(process)

    def _start(self) -> "_Child":
        with self._starting:
            if self._is_closed:
                raise concurrent.futures.CancelledError
            self._children.append(_Child(self._setup))
            return self._children[-1]


class _Child:
    """A worker process and the pipes to it."""

    def __init__(self, setup: tuple[Callable, tuple]):
        # In a new session, so that Ctrl-C reaches the parent only.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | _ONE_THREAD,
        )
        with contextlib.suppress(BrokenPipeError):  # the first call reports that it died
            pickle.dump(setup, self._process.stdin)
            self._process.stdin.flush()

    def call(self, block: Any) -> Any:
        try:
            pickle.dump(block, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            failure, result = pickle.load(self._process.stdout)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            raise UserError(self._exit_message()) from None
        if failure is UserError:
            raise UserError(result)
        if failure is not None:
            raise RuntimeError(f"error in a worker process:\n{result}")
        return result

    def _exit_message(self) -> str:
        status = self._process.wait()
        if status < 0:
            cause = f"was killed by {signal.Signals(-status).name}"
            cause += " (out of memory? use fewer --workers)" if -status == signal.SIGKILL else ""
        else:
            cause = f"exited with status {status}"
        return (
            f"worker process {self._process.pid} {cause}; "
            "run the same command again to resume after the last finished shard"
        )

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def run_child() -> None:
    """The main function of a worker process: process blocks until the parent closes the pipe."""
    blocks, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a library prints must not be mixed with the results
    failure, function = _attempt(_make_function, blocks)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            block = pickle.load(blocks)
            result = (failure, function) if failure else _attempt(function, block)
            pickle.dump(result, results, pickle.HIGHEST_PROTOCOL)
            results.flush()
    os._exit(0)  # without flushing, which would raise an error as the pipe is closed


def _make_function(setup: BinaryIO) -> Callable:
    make, arguments = pickle.load(setup)
    return make(*arguments)


def _attempt(function: Callable, argument: Any) -> tuple[type | None, Any]:
    """Call a function; return (None, result) or (type of the error, message)."""
    try:
        return None, function(argument)
    except UserError as error:
        return UserError, str(error)
    except Exception:
        return Exception, traceback.format_exc()
