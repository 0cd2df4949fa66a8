"""Assemble a training session: workdir lock, signals, checkpoints, input feed, hooks, loop.

lock_workdir   workdir, config -> the lock on it and its `config.json`
open_session   workdir -> signal handling, and synchronisation with a bucket
fit            trainer, batches -> final state, resumed from the newest checkpoint

Pretraining and every seed of a fine-tuning are `fit` with other batches and another evaluation.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax import build
from bertjax.config import flatten
from bertjax.layers.attention_kernels import log_kernel_choice
from bertjax.layers.dense import PRECISIONS
from bertjax.runs import bucket_sync, workdir
from bertjax.runtime.chips import peak_flops_per_second
from bertjax.runtime.interrupt import Interrupt
from bertjax.train import tracking
from bertjax.train.budget import Budget
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.hooks import Hook, SaveCheckpoints, StopWhenNotFinite, Watchdog
from bertjax.train.loop import Feed, train
from bertjax.train.report import Goodput, Report
from bertjax.train.starts import StartsFile
from bertjax.train.state import TrainState
from bertjax.train.trainer import Trainer
from bertjax.train.writers import Display, MetricsFile, TensorBoard

Log = Callable[[str], None]
"""Logs one line."""

HostBatches = Iterator[tuple[int, Mapping[str, np.ndarray]]]
"""(optimizer steps done before it, this host's rows of the batch)"""


@contextlib.contextmanager
def lock_workdir(
    folder: pathlib.Path, config: Mapping[str, Any], mutable: Sequence[str] = workdir.MUTABLE_FIELDS
) -> Iterator[None]:
    """Locks a workdir for this job and writes its `config.json`, on the first host for all hosts.

    Args:
      folder: The workdir on this machine.
      config: Plain values for `config.json`.
      mutable: Patterns of fields that may change when a run is resumed.

    Raises:
      UserError: another process holds the folder, or it belongs to another config.
    """
    is_first = jax.process_index() == 0
    with workdir.claim(folder, config, mutable=mutable) if is_first else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def open_session(folder: pathlib.Path, name: str, log: Log) -> Iterator[Interrupt]:
    """Uploads a workdir to its bucket and turns signals into a stop after the current step.

    Args:
      folder: The workdir on this machine.
      name: The workdir as the user named it, which may be in a bucket.
      log: Also logs which attention kernel is compiled, and why.
    """
    with (
        bucket_sync.sync_to_bucket(folder, name),
        Interrupt() as interrupt,
        log_kernel_choice(log),
    ):
        yield interrupt


@dataclasses.dataclass(frozen=True)
class FitResult:
    """Result of `fit`.

    Attributes:
      state: State after the last step of this process.
      first_step: Steps done before this process.
      costs: `tokens`, `seconds` and `updates_skipped` since the beginning of the run, the parts of
        its time (`goodput/...`, seconds), and `budget_seconds_spent` with a budget.
    """

    state: TrainState
    first_step: int
    costs: Mapping[str, Any]


def fit(
    config: ConfigDict,
    trainer: Trainer,
    *,
    folder: pathlib.Path,
    checkpoints: Checkpoints,
    checkpoint_intervals: Sequence[int],
    init_state: Callable[[], TrainState],
    batches: Callable[[int], contextlib.AbstractContextManager[HostBatches]],
    example_batch: Mapping[str, np.ndarray],
    evaluation: Hook,
    interrupt: Interrupt,
    log: Log,
    budget_seconds: float = 0.0,
) -> FitResult:
    """Trains from the newest checkpoint, or from the initial state, to `config.num_train_steps`.

    Afterwards, `interrupt.stopped` is true if steps are left.

    Args:
      config: Config of the run.
      trainer: Its compiled steps.
      folder: Folder of `metrics.jsonl`, `starts.jsonl` and, with `config.tensorboard`,
        `tensorboard/`.
      checkpoints: The checkpoints of the run; closed at the end.
      checkpoint_intervals: Optimizer steps between checkpoints; see `SaveCheckpoints`.
      init_state: Makes the state of a run without checkpoints.
      batches: (steps done) -> host batches from there on.
      example_batch: Any host batch, from which FLOPs are counted.
      evaluation: Measures the model; its metrics are written and kept with checkpoints.
      interrupt: Stops training after a step or an evaluation batch.
      log: Logs one line.
      budget_seconds: Seconds of training after which it ends; 0 for no budget.
    """
    if advice := precision_advice(config.model, trainer.mesh.devices.flat[0].platform):
        log(advice)
    budget = Budget(budget_seconds, config.num_train_steps, trainer.mesh)
    with contextlib.closing(checkpoints):
        resumed = checkpoints.resume(trainer.shapes)
        if resumed is None:
            state, restored = init_state(), {}
        else:
            state, record = resumed
            restored = record.hooks
            log(f"resuming from step {record.step:,}")
        first_step = int(state.step)
        with batches(first_step) as host_batches:
            flops = functools.partial(trainer.flops, example_batch)
            feed = Feed(host_batches, trainer.mesh, flops, budget.stamp)
            report = Report(config.log_every, feed.work, peak_flops(config, trainer))
            goodput = Goodput(folder)
            # Hooks that measure come before those that write, and saving is last.
            hooks = [
                budget,
                report,
                evaluation,
                goodput,
                StartsFile(folder),
                MetricsFile(folder),
                *([TensorBoard(folder)] if build.run_field(config, "tensorboard") else []),
                *tracking.make(build.run_field(config, "trackers"), folder, flatten(config)),
                Display(),
                Watchdog(config.watchdog_minutes),
                StopWhenNotFinite(config.max_skipped_in_a_row),
                SaveCheckpoints(checkpoint_intervals, checkpoints),
            ]
            state = train(
                state,
                feed,
                trainer.train_step,
                hooks,
                num_train_steps=config.num_train_steps,
                interrupt=interrupt,
                restored=restored,
            )
    costs = {"tokens": report.tokens, "seconds": report.seconds, **goodput.newest}
    costs |= {"budget_seconds_spent": budget.spent} if budget_seconds else {}
    return FitResult(state, first_step, costs | {"updates_skipped": report.updates_skipped})


def precision_advice(model: Mapping[str, Any], platform: str) -> str:
    """A line for a precision that is slow on these devices, "" for any other.

    Args:
      model: `config.model`.
      platform: The kind of devices, as in JAX.
    """
    name = build.precision(model)
    if platform != "cpu" or PRECISIONS[name].activations == "float32":
        return ""
    return (
        f"precision: {name} is slow on CPUs, which have bfloat16 for matmuls alone, if at all; "
        "--config.model.precision=auto is faster"
    )


def peak_flops(config: ConfigDict, trainer: Trainer) -> float | None:
    """FLOPs per second of all devices at the run's precision; None for unknown devices."""
    precision = PRECISIONS[build.precision(config.model)]
    return peak_flops_per_second(list(trainer.mesh.devices.flat), precision.operands)
