"""Input pipeline: the batch of a step is a pure function of (seed, step).

Row r of step s of a phase is at position first_position + s * batch_size + r of an endless sequence
of epochs, each with its own order of the examples. Resuming requires no saved state. A host builds
only its own rows, and the global batch is the same for any number of hosts. Threads prefetch
batches.
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
    """Prefetch items on a background thread: the next one is made while one is used.

    Two items are in memory at a time. Errors of the iterator are raised in the consumer.
    """
    source = iter(items)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, source, _END)
        while (item := following.result()) is not _END:
            following = thread.submit(next, source, _END)
            yield item


Rows = slice | Int[np.ndarray, " n"] | None
"""The rows of the global batch that a host builds; `None` for all."""

_BYTES_PER_JOB = 4 << 20
"""Small batches are built several at once, up to this size: the rows of a call share the records
that it reads and the cost of the call."""


class Phase(NamedTuple):
    """A phase of a run with its own examples and batch size, such as 128 tokens and then 512.

    Attributes:
      steps: Number of steps; None for no end.
      examples: The examples.
      batch_size: Number of examples of a global batch.
      rows: Rows of the global batch that this host builds.
      first_position: Position of its first row in the endless sequence of epochs.
    """

    steps: int | None
    examples: ExampleSource
    batch_size: int
    rows: Rows = None
    first_position: int = 0


class Batches(Iterator[tuple[int, HostBatch]]):
    """An iterator over (step, batch) whose batches are built ahead by threads.

    Errors in a thread are raised in the consumer. Close it, or use it in a `with` statement, to
    stop the threads before the end.

    Attributes:
      wait_seconds: Total time that the consumer has waited for batches.
    """

    wait_seconds: float

    def __init__(
        self,
        jobs: Iterator[Callable[[], list[tuple[int, HostBatch]]]],
        *,
        threads: int,
        num_pending: int,
    ):
        """Start the threads.

        Args:
          jobs: Functions that build the batches of some steps, in order.
          threads: Number of threads.
          num_pending: Number of jobs that are submitted before their batches are needed.
        """
        self.wait_seconds = 0.0
        self._jobs, self._num_pending = jobs, num_pending
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "bertjax-batches")
        self._submitted: collections.deque[concurrent.futures.Future] = collections.deque()
        self._ready: collections.deque[tuple[int, HostBatch]] = collections.deque()
        self._submit()

    def __next__(self) -> tuple[int, HostBatch]:
        if not self._ready:
            if not self._submitted:
                self.close()
                raise StopIteration
            started = time.perf_counter()
            try:
                self._ready.extend(self._submitted.popleft().result())
                self._submit()
            except BaseException:
                self.close()
                raise
            self.wait_seconds += time.perf_counter() - started
        return self._ready.popleft()

    def _submit(self) -> None:
        while len(self._submitted) < self._num_pending and (job := next(self._jobs, None)):
            self._submitted.append(self._pool.submit(job))

    def close(self) -> None:
        """Stop the threads and cancel jobs that have not started."""
        self._jobs = iter(())
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._submitted.clear()
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
    """Iterate over the training batches from `start_step` on.

    Args:
      examples: The examples.
      batch_size: Number of examples of a global batch.
      start_step: The first step.
      num_steps: The step before which to end, counted from step 0; None for no end.
      rows: Rows of the global batch that this host builds; None for all.
      prefetch: Minimum number of batches that are built ahead.
      threads: Number of threads that build batches.

    Returns:
      An iterator over (step, batch). A batch has the arrays of `examples.build`, and
      `example_weight` (float32 [n], all 1).

    Raises:
      UserError: An epoch has fewer examples than a batch.
    """
    phase = Phase(num_steps, examples, batch_size, rows)
    return phased_batches([phase], start_step=start_step, prefetch=prefetch, threads=threads)


def phased_batches(
    phases: Sequence[Phase], *, start_step: int = 0, prefetch: int = 8, threads: int = 2
) -> Batches:
    """Iterate over the training batches of consecutive phases from `start_step` on.

    Steps are counted over all phases. See `batches`.
    """
    for phase in phases:
        _check_size(phase)
    groups = [_steps_per_job(phase) for phase in phases]
    jobs = _training_jobs(phases, groups, start_step)
    return Batches(jobs, threads=threads, num_pending=threads + -(-prefetch // min(groups)))


def evaluation_batches(
    examples: ExampleSource,
    *,
    batch_size: int,
    rows: Rows = None,
    prefetch: int = 8,
    threads: int = 2,
) -> Batches:
    """Iterate over every example of epoch 0 exactly once, in a random order.

    The first batches are a random sample, for a split that is too large to evaluate as a whole.
    The last batch is padded with examples whose `example_weight` is 0. See `batches`.
    """
    phase = Phase(None, examples, batch_size, rows)
    group = _steps_per_job(phase)
    jobs = _evaluation_jobs(phase, group)
    return Batches(jobs, threads=threads, num_pending=threads + -(-prefetch // group))


def _check_size(phase: Phase) -> None:
    count = phase.examples.num_examples
    if count < phase.batch_size:
        raise UserError(
            f"too few examples: got {count} of {phase.examples.max_seq_length} tokens per epoch, "
            f"expected at least batch_size={phase.batch_size}; lower batch_size or prepare a "
            "larger corpus"
        )


def _steps_per_job(phase: Phase) -> int:
    row = phase.examples.build(0, np.zeros(1, np.int64))
    row_bytes = sum(values.nbytes for values in row.values())
    return max(1, _BYTES_PER_JOB // (row_bytes * max(1, len(_row_indices(phase)))))


def _row_indices(phase: Phase) -> Int[np.ndarray, " n"]:
    numbers = np.arange(phase.batch_size, dtype=np.int64)
    return numbers if phase.rows is None else numbers[phase.rows]


def _training_jobs(
    phases: Sequence[Phase], groups: Sequence[int], start_step: int
) -> Iterator[Callable]:
    begin = 0
    for phase, group in zip(phases, groups, strict=True):
        end = None if phase.steps is None else begin + phase.steps
        step = max(begin, start_step)
        while end is None or step < end:
            stop = step + group if end is None else min(step + group, end)
            yield functools.partial(_training_steps, phase, begin, step, stop)
            step = stop
        begin = end


def _training_steps(phase: Phase, begin: int, step: int, stop: int) -> list[tuple[int, HostBatch]]:
    """Build the batches of the steps [step, stop) of a phase that starts at step `begin`."""
    rows = _row_indices(phase)
    steps = np.arange(step - begin, stop - begin, dtype=np.int64)[:, None]
    positions = phase.first_position + steps * phase.batch_size + rows
    built = _build(phase.examples, positions.reshape(-1))
    built["example_weight"] = np.ones(len(built["example_id"]), np.float32)
    return _split_steps(built, step, len(rows))


def _evaluation_jobs(phase: Phase, group: int) -> Iterator[Callable]:
    end = -(-phase.examples.num_examples // phase.batch_size)
    for step in range(0, end, group):
        yield functools.partial(_evaluation_steps, phase, step, min(step + group, end))


def _evaluation_steps(phase: Phase, step: int, stop: int) -> list[tuple[int, HostBatch]]:
    rows, size = _row_indices(phase), phase.examples.num_examples
    steps = np.arange(step, stop, dtype=np.int64)[:, None]
    position = (steps * phase.batch_size + rows).reshape(-1)
    built = _build(phase.examples, np.minimum(position, size - 1))
    built["example_weight"] = (position < size).astype(np.float32)
    return _split_steps(built, step, len(rows))


def _build(examples: ExampleSource, position: Int[np.ndarray, " n"]) -> HostBatch:
    """Build the examples at positions of the endless sequence of epochs."""
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


def _split_steps(built: HostBatch, step: int, rows: int) -> list[tuple[int, HostBatch]]:
    """Split the examples of several steps into batches."""
    count = len(built["example_id"]) // rows
    return [
        (step + number, {key: values[number * rows :][:rows] for key, values in built.items()})
        for number in range(count)
    ]
