"""Input pipeline: the batch of a step is a pure function of (seed, step).

Row r of step s is at position s * batch_size + r of an endless sequence of epochs, each with its
own order of the examples. Resuming needs no saved state, and a host builds only its own rows, so
that the global batch is the same on any number of hosts. Threads prefetch batches.
"""

import collections
import concurrent.futures
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int

from bertjax.data.format import ExampleSource, HostBatch
from bertjax.errors import UserError

Item = TypeVar("Item")
_END = object()


def prefetch_items(items: Iterable[Item]) -> Iterator[Item]:
    """The same items: while one is used, a thread makes the next one.

    Two are in memory at a time. What making one raises is raised where it would be asked for.
    """
    source = iter(items)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, source, _END)
        while (item := following.result()) is not _END:
            following = thread.submit(next, source, _END)
            yield item


Rows = slice | Int[np.ndarray, " n"] | None
"""Which rows of the global batch a host builds; `None` for all of them."""

_ROWS_PER_JOB = 1024
"""Small batches are built several at once: the cost of a call is shared by all of its rows."""


class Phase(NamedTuple):
    """A part of a run with its own examples and batch size, as 128 tokens first and then 512.

    Attributes:
      steps: How many steps it has; `None` for no end.
      examples: Where its batches come from.
      batch_size: Examples in a global batch.
      rows: Those that this host builds.
    """

    steps: int | None
    examples: ExampleSource
    batch_size: int
    rows: Rows = None


class Batches(Iterator[tuple[int, HostBatch]]):
    """Steps and their batches, in order, built ahead by threads.

    What goes wrong in a thread is raised where the batch would have come. Close it, or use it in a
    `with` statement, to stop the threads before the end.

    Attributes:
      wait_seconds: How long the consumer has waited for batches so far.
    """

    wait_seconds: float

    def __init__(
        self,
        jobs: Iterator[Callable[[], list[tuple[int, HostBatch]]]],
        *,
        threads: int,
        ahead: int,
    ):
        """Starts to build.

        Args:
          jobs: What is done, in order; each gives some steps.
          threads: How many jobs are done at once.
          ahead: How many jobs are begun before the consumer asks for them.
        """
        self.wait_seconds = 0.0
        self._jobs, self._ahead = jobs, ahead
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "bertjax-batches")
        self._begun: collections.deque[concurrent.futures.Future] = collections.deque()
        self._ready: collections.deque[tuple[int, HostBatch]] = collections.deque()
        self._begin()

    def __next__(self) -> tuple[int, HostBatch]:
        if not self._ready:
            if not self._begun:
                self.close()
                raise StopIteration
            started = time.perf_counter()
            try:
                self._ready.extend(self._begun.popleft().result())
                self._begin()
            except BaseException:
                self.close()
                raise
            self.wait_seconds += time.perf_counter() - started
        return self._ready.popleft()

    def _begin(self) -> None:
        while len(self._begun) < self._ahead and (job := next(self._jobs, None)):
            self._begun.append(self._pool.submit(job))

    def close(self) -> None:
        """Stops the threads; jobs that are not begun never are."""
        self._jobs = iter(())
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._begun.clear()
        self._ready.clear()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def batches(
    examples: ExampleSource,
    *,
    batch_size: int,
    start_step: int = 0,
    num_steps: int | None = None,
    rows: Rows = None,
    prefetch: int = 8,
    threads: int = 2,
) -> Batches:
    """The batches of a run from some step on.

    Args:
      examples: Where they come from.
      batch_size: Examples in a global batch.
      start_step: The first step.
      num_steps: The step to end before, counted from step 0; `None` for no end.
      rows: Those of the global batch that this host builds.
      prefetch: How many batches are built ahead, at least.
      threads: How many threads build.

    Returns:
      Steps and batches: those of `Examples.build` and `example_weight` (float32 [n], all 1).

    Raises:
      UserError: an epoch has fewer examples than a batch.
    """
    phase = Phase(num_steps, examples, batch_size, rows)
    return phased_batches([phase], start_step=start_step, prefetch=prefetch, threads=threads)


def phased_batches(
    phases: Sequence[Phase], *, start_step: int = 0, prefetch: int = 8, threads: int = 2
) -> Batches:
    """The batches of a run of several phases, one after the other, from some step on.

    Steps count through all phases; the epochs of each phase begin at 0. See `batches`.
    """
    for phase in phases:
        _check_size(phase)
    group = min(_steps_per_job(phase.batch_size, phase.rows) for phase in phases)
    ahead = threads + -(-prefetch // group)
    return Batches(_training_jobs(phases, start_step), threads=threads, ahead=ahead)


def evaluation_batches(
    examples: ExampleSource,
    *,
    batch_size: int,
    rows: Rows = None,
    prefetch: int = 8,
    threads: int = 2,
) -> Batches:
    """Every example of epoch 0 exactly once, in an order that mixes documents.

    So the first batches are a random sample of a split that is too large to go through. The last
    batch is filled up with examples whose `example_weight` is 0. See `batches`.
    """
    group = _steps_per_job(batch_size, rows)
    jobs = _evaluation_jobs(examples, batch_size, rows, group)
    return Batches(jobs, threads=threads, ahead=threads + -(-prefetch // group))


def _check_size(phase: Phase) -> None:
    found = phase.examples.num_examples
    if found < phase.batch_size:
        raise UserError(
            f"an epoch has {found} examples of {phase.examples.max_seq_length} tokens, fewer than "
            f"batch_size={phase.batch_size}: lower batch_size or prepare a larger corpus"
        )


def _steps_per_job(batch_size: int, rows: Rows) -> int:
    return max(1, _ROWS_PER_JOB // max(1, len(_numbers(batch_size, rows))))


def _numbers(batch_size: int, rows: Rows) -> Int[np.ndarray, " n"]:
    numbers = np.arange(batch_size, dtype=np.int64)
    return numbers if rows is None else numbers[rows]


def _training_jobs(phases: Sequence[Phase], start_step: int) -> Iterator[Callable]:
    begin = 0
    for phase in phases:
        end = None if phase.steps is None else begin + phase.steps
        group = _steps_per_job(phase.batch_size, phase.rows)
        step = max(begin, start_step)
        while end is None or step < end:
            stop = step + group if end is None else min(step + group, end)
            yield functools.partial(_training_steps, phase, begin, step, stop)
            step = stop
        begin = end


def _training_steps(phase: Phase, begin: int, step: int, stop: int) -> list[tuple[int, HostBatch]]:
    """Builds the batches of steps of a phase that begins at step `begin`."""
    rows = _numbers(phase.batch_size, phase.rows)
    steps = np.arange(step - begin, stop - begin, dtype=np.int64)[:, None]
    built = _build(phase.examples, (steps * phase.batch_size + rows).reshape(-1))
    built["example_weight"] = np.ones(len(built["example_id"]), np.float32)
    return _in_steps(built, step, len(rows))


def _evaluation_jobs(
    examples: ExampleSource, batch_size: int, rows: Rows, group: int
) -> Iterator[Callable]:
    end = -(-examples.num_examples // batch_size)
    for step in range(0, end, group):
        stop = min(step + group, end)
        yield functools.partial(_evaluation_steps, examples, batch_size, rows, step, stop)


def _evaluation_steps(
    examples: ExampleSource, batch_size: int, rows: Rows, step: int, stop: int
) -> list[tuple[int, HostBatch]]:
    numbers = _numbers(batch_size, rows)
    steps = np.arange(step, stop, dtype=np.int64)[:, None]
    position = (steps * batch_size + numbers).reshape(-1)
    built = _build(examples, np.minimum(position, examples.num_examples - 1))
    built["example_weight"] = (position < examples.num_examples).astype(np.float32)
    return _in_steps(built, step, len(numbers))


def _build(examples: ExampleSource, position: Int[np.ndarray, " n"]) -> HostBatch:
    """Builds the examples at places of the endless epochs."""
    size = examples.num_examples
    epochs, inside = np.divmod(position, size)
    built: HostBatch = {}
    for epoch in np.unique(epochs).tolist():
        rows = np.flatnonzero(epochs == epoch)
        part = examples.build(epoch, examples.order(epoch, inside[rows]))
        if len(rows) == len(position):
            return part
        for key, values in part.items():
            whole = built.setdefault(
                key, np.empty((len(position), *values.shape[1:]), values.dtype)
            )
            whole[rows] = values
    return built


def _in_steps(built: HostBatch, step: int, rows: int) -> list[tuple[int, HostBatch]]:
    """Takes what was built for some steps at once apart."""
    count = len(built["example_id"]) // rows
    return [
        (step + number, {key: values[number * rows :][:rows] for key, values in built.items()})
        for number in range(count)
    ]
