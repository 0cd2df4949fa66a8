"""Pretraining: train a prepared job to the end and write its summary."""

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bertjax import build
from bertjax import config as configs
from bertjax.data.pipeline import Phase, phased_batches
from bertjax.interfaces import Params
from bertjax.layers.dense import NAMED
from bertjax.runs import held_out
from bertjax.runs.bucket_sync import synced
from bertjax.runs.prepare import Job
from bertjax.runs.workdir import read_summary, write_summary
from bertjax.runtime.chips import peak_flops_per_second
from bertjax.runtime.interrupt import Interrupt
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.checkpoint.retention import Keep
from bertjax.train.evaluate import HELD_OUT
from bertjax.train.feed import Feed
from bertjax.train.hooks import Evaluate, SaveCheckpoints, StopWhenNotFinite, Watchdog
from bertjax.train.loop import train
from bertjax.train.report import Goodput, Report
from bertjax.train.sharding import local_rows
from bertjax.train.state import TrainState
from bertjax.train.writers import Display, MetricsFile, TensorBoard


def finished(job: Job) -> dict[str, Any] | None:
    """The summary of a run that has done all its steps."""
    summary = read_summary(job.workdir)
    return summary if summary and summary["steps"] >= job.config.num_train_steps else None


def pretrain(
    job: Job,
    interrupt: Interrupt,
    log: Callable[[str], None],
    guesses: Callable[[Job, Params], list[dict[str, Any]]],
) -> dict[str, Any] | None:
    """Trains to the end of the run and writes `summary.json`; None if it was interrupted.

    Args:
      job: The run.
      interrupt: Asks for a stop after the current step.
      log: Logs one line.
      guesses: Predictions of the trained model for the summary.
    """
    if jax.process_index() == 0 and job.tokenizer is not None:
        _keep_tokenizer(job)
    with synced(job.workdir, job.name):
        return _pretrained(job, interrupt, log, guesses)


def _pretrained(
    job: Job,
    interrupt: Interrupt,
    log: Callable[[str], None],
    guesses: Callable[[Job, Params], list[dict[str, Any]]],
) -> dict[str, Any] | None:
    config, trainer = job.config, job.trainer
    checkpoints = Checkpoints(
        job.name,
        keep=Keep(config.keep_checkpoints, config.keep_best, config.best_metric, config.best_mode),
        provenance=job.provenance,
        log=log,
    )
    with contextlib.closing(checkpoints):
        resumed = checkpoints.resume(trainer.shapes)
        state, restored = (trainer.create_state(), {})
        if resumed is not None:
            state, record = resumed
            restored = record.hooks
            log(f"resuming from step {record.step:,}")
        with _batches(job, int(state.step)) as batches:
            feed = Feed(batches, trainer.mesh, _flops(job))
            report = Report(config.log_every, feed.work, _peak(job))
            evaluation = Evaluate(config.eval_every, functools.partial(_measure, job))
            goodput = Goodput(job.workdir)
            state = train(
                state,
                feed,
                trainer.train_step,
                [report, evaluation, goodput, *_hooks(job, checkpoints)],
                num_train_steps=config.num_train_steps,
                interrupt=interrupt,
                restored=restored,
            )
    if interrupt.stopped:
        return None
    spent = {"tokens": report.tokens, "seconds": report.seconds, **goodput.newest}
    spent["updates_skipped"] = report.updates_skipped
    spent["guesses"] = guesses(job, state.params)
    return _summarise(job, state, spent, evaluation.newest or _measure(job, state))


def _keep_tokenizer(job: Job) -> None:
    """Puts the tokenizer where fine-tuning looks for it: with the run."""
    folder = job.workdir / "tokenizer"
    if not folder.exists():
        job.tokenizer.save(str(folder))


def _peak(job: Job) -> float | None:
    precision = NAMED[build.precision(job.config.model.precision)]
    return peak_flops_per_second(list(job.trainer.mesh.devices.flat), precision.operands)


def _flops(job: Job) -> Callable[[tuple[int, ...]], float]:
    return functools.cache(lambda shape: job.trainer.flops(job.rows, shape))


def _batches(job: Job, start_step: int):
    phases = [
        Phase(
            phase.steps,
            job.examples(job.corpus, phase),
            phase.batch_size,
            local_rows(phase.batch_size, job.trainer.mesh),
        )
        for phase in job.phases
    ]
    return phased_batches(phases, start_step=start_step)


def _hooks(job: Job, checkpoints: Checkpoints) -> list:
    config = job.config
    return [
        MetricsFile(job.workdir),
        TensorBoard(job.workdir),
        Display(),
        Watchdog(config.watchdog_minutes),
        StopWhenNotFinite(config.max_skipped_in_a_row),
        SaveCheckpoints(config.checkpoint_every, checkpoints),
    ]


def _measure(job: Job, state: TrainState) -> dict[str, float]:
    if job.held_out is None:
        return {}
    last, limit = job.phases[-1], job.config.eval_examples
    examples = job.examples(job.held_out, last)
    return held_out.measure(
        job.trainer, state.params, examples, batch_size=last.batch_size, limit=limit
    )


def _unigram(job: Job) -> dict[str, float]:
    """What word frequencies alone get of what the run predicts."""
    parts = job.corpus, job.held_out, job.tokenizer.special_ids
    if "bidirectional_lm" not in job.config.objectives:
        return held_out.unigram(*parts)
    size = job.config.objectives.bidirectional_lm.softmax_size
    return held_out.unigram(*parts, unk_id=job.tokenizer.unk_id, softmax_size=size)


def _summarise(
    job: Job, state: TrainState, spent: Mapping[str, Any], means: Mapping[str, float]
) -> dict[str, Any]:
    """Writes `summary.json`: the last measurement beside the unigram baseline, and the cost."""
    summary: dict[str, Any] = {"status": "complete", "steps": int(state.step)}
    summary |= {
        name.removeprefix(HELD_OUT).replace("/", "_"): value for name, value in means.items()
    }
    if job.held_out is not None and job.tokenizer is not None:
        summary |= _unigram(job)
    summary |= {
        **spent,
        "parameters": build.parameter_count(job.trainer.shapes.params),
        **{f"{name}_fingerprint": value for name, value in job.provenance.items()},
        "config": json.loads(configs.to_json(job.config)),
    }
    if jax.process_index() == 0:
        write_summary(job.workdir, summary)
    return summary
