"""Map blocks over child processes: results in order, bounded memory.

The children are plain interpreters that read blocks from a pipe: nothing is forked, so jax and its
threads may live in the parent; nothing of the parent's main module is run again; and whatever ends
the parent, even `kill -9`, closes the pipe and so ends the children.
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

_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from bertjax.corpus.workers import child; child()"
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Child processes that each make a function with `make(*arguments)` and call it on blocks.

    A child starts when there is a block for it. A context manager: leaving it ends the children,
    whatever they are doing.

    Args:
      make: A function or class that a child can import.
      arguments: What a child makes its function from.
      count: How many children at most; as many as there are cores unless told.
    """

    def __init__(self, make: Callable[..., Callable], arguments: tuple, count: int | None = None):
        count = count or available_cores()
        self._setup = (make, arguments)
        self._children: list[_Child] = []
        self._starting = threading.Lock()
        self._is_closed = False
        # Last in, first out: a place without a child is taken only if all children are busy.
        self._places: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        for _ in range(count):
            self._places.put(None)
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "bertjax-workers")
        # Enough that no child waits while the parent writes, few enough to bound memory.
        self._most_pending = 2 * count + 1

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_) -> None:
        with self._starting:
            self._is_closed = True
        for process in self._children:
            process.end()
        self._threads.shutdown(cancel_futures=True)
        for process in self._children:
            process.forget()

    def ordered(self, blocks: Iterable[tuple[Tag, Any]]) -> Iterator[tuple[Tag, Any]]:
        """Yields (tag, result) for every (tag, block), in the order of the blocks.

        Raises:
          UserError: the function raised it, or a child died.
          RuntimeError: the function raised anything else; the child's traceback is its text.
        """
        pending: collections.deque[tuple[Tag, concurrent.futures.Future]] = collections.deque()
        for tag, block in blocks:
            pending.append((tag, self._threads.submit(self._call, block)))
            while pending and (len(pending) > self._most_pending or pending[0][1].done()):
                tag, future = pending.popleft()
                yield tag, future.result()
        for tag, future in pending:
            yield tag, future.result()

    def _call(self, block: Any) -> Any:
        process = self._places.get()
        try:
            process = process or self._start()
            return process.call(block)
        finally:
            self._places.put(process)

    def _start(self) -> "_Child":
        with self._starting:
            if self._is_closed:
                raise concurrent.futures.CancelledError
            self._children.append(_Child(self._setup))
            return self._children[-1]


class _Child:
    """One child process and the pipes to it."""

    def __init__(self, setup: tuple[Callable, tuple]):
        # A session of its own: Ctrl-C is for the parent to answer.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | _ONE_THREAD,
        )
        with contextlib.suppress(BrokenPipeError):  # the first call will say that it died
            pickle.dump(setup, self._process.stdin)
            self._process.stdin.flush()

    def call(self, block: Any) -> Any:
        try:
            pickle.dump(block, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            failure, result = pickle.load(self._process.stdout)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            raise UserError(self._last_words()) from None
        if failure is UserError:
            raise UserError(result)
        if failure is not None:
            raise RuntimeError(f"in a worker process:\n{result}")
        return result

    def _last_words(self) -> str:
        status = self._process.wait()
        if status < 0:
            cause = f"was killed by {signal.Signals(-status).name}"
            cause += " (is memory short? try fewer --workers)" if -status == signal.SIGKILL else ""
        else:
            cause = f"ended with status {status}"
        return (
            f"worker process {self._process.pid} {cause}; "
            "run the same command again to continue from the last finished shard"
        )

    def end(self) -> None:
        self._process.kill()

    def forget(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def child() -> None:
    """What a child process does: reads blocks and answers until its parent is gone."""
    blocks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    failure, function = _attempt(_make, blocks)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            block = pickle.load(blocks)
            answer = (failure, function) if failure else _attempt(function, block)
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
    os._exit(0)  # without a last flush into a pipe that nobody reads


def _make(setup: BinaryIO) -> Callable:
    make, arguments = pickle.load(setup)
    return make(*arguments)


def _attempt(function: Callable, argument: Any) -> tuple[type | None, Any]:
    """Calls a function; returns (what kind of failure, the result or what went wrong)."""
    try:
        return None, function(argument)
    except UserError as error:
        return UserError, str(error)
    except Exception:
        return Exception, traceback.format_exc()
