"""Pretraining: from a config to a trained state and what a person wants to know of it.

prepare    config -> Job: text becomes a corpus where it must, everything is checked
pretrain   Job -> summary: trains from the newest checkpoint, or from the beginning
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax import build, fill, held_out
from bertjax import config as configs
from bertjax.data import cache, tokenizer
from bertjax.data.pipeline import Phase, phased_batches
from bertjax.data.prepare import Progress
from bertjax.data.records import Corpus, check_tokenizer, open_corpus, read_manifest
from bertjax.errors import UserError
from bertjax.interfaces import Pretrainer, Tokenizer
from bertjax.layers.precision import NAMED
from bertjax.train.checkpoint import Checkpoints, Keep
from bertjax.train.display import Display
from bertjax.train.feed import Feed
from bertjax.train.hooks import Evaluate, SaveCheckpoints, StopWhenNotFinite
from bertjax.train.interrupt import Interrupt
from bertjax.train.loop import train
from bertjax.train.metric_writer import MetricsFile, TensorBoard
from bertjax.train.peak import peak_flops_per_second
from bertjax.train.report import Report
from bertjax.train.sharding import local_rows
from bertjax.train.state import TrainState
from bertjax.train.trainer import Trainer
from bertjax.train.workdir import FREE_FIELDS, read_summary, write_summary

_NOT_LEARNED_FROM = (*FREE_FIELDS, "num_train_steps", "data.cache")
"""Fields that do not make a checkpoint another run's."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A run before its first step.

    Attributes:
      workdir: Where everything goes.
      config: Of the run.
      tokenizer: Its own copy lies in the workdir.
      corpus: The text that is learned from.
      held_out: The text that is measured on, if there is any.
      phases: The run's parts, of one shape each.
      trainer: What is compiled.
      rows: A host batch: its shapes are those of the last phase.
    """

    workdir: pathlib.Path
    config: ConfigDict
    tokenizer: Tokenizer
    corpus: Corpus
    held_out: Corpus | None
    phases: list[build.Phase]
    trainer: Trainer
    rows: Mapping[str, np.ndarray]

    def examples(self, corpus: Corpus, phase: build.Phase):
        """The examples of a split at the length of a phase."""
        return build.examples(self.config, corpus, self.tokenizer, phase.max_seq_length)


def prepare(
    config: ConfigDict,
    workdir: str,
    say: Callable[[str], None],
    progress: Callable[[Progress], None] | None = None,
) -> Job:
    """Makes what is missing and checks what is there.

    Raises:
      UserError: something is missing or does not fit.
    """
    phases = build.phases(config)
    shapes = [(phase.batch_size, phase.max_seq_length) for phase in phases]
    mesh = build.make_mesh(config, *zip(*shapes, strict=True))
    build.check(config)
    pieces, corpus_path = _text(config, say, progress)
    build.check_vocabulary(config, pieces)
    corpus = open_corpus(corpus_path)
    check_tokenizer(corpus, pieces)
    splits = read_manifest(corpus_path)["splits"]
    unseen = open_corpus(corpus_path, "validation") if "validation" in splits else None
    last = phases[-1]
    examples = build.examples(config, corpus, pieces, last.max_seq_length)
    rows = examples.build(0, np.zeros(1, np.int64))
    rows["example_weight"] = np.ones(1, np.float32)
    objectives = build.objectives(config.objectives, build.facts(config, pieces))
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    trainer = build.trainer(config, pretrainer, mesh, rows)
    return Job(pathlib.Path(workdir), config, pieces, corpus, unseen, phases, trainer, rows)


def description(job: Job) -> str:
    """What is about to run: text, shapes, parameters, mesh, FLOPs."""
    corpus, mesh, trainer = job.corpus, job.trainer.mesh, job.trainer
    parameters = trainer.shapes.params
    parts = ", ".join(
        f"{name} {build.parameter_count(tree):,}" for name, tree in parameters.items()
    )
    axes = " x ".join(f"{axis}={size}" for axis, size in mesh.shape.items() if size > 1)
    lines = [
        f"corpus      {corpus.path}: {corpus.num_documents:,} documents, {corpus.num_tokens:,} "
        f"tokens; held out {job.held_out.num_documents if job.held_out else 0:,} documents",
        f"tokenizer   {job.tokenizer.vocab_size:,} pieces, {job.tokenizer.fingerprint[:16]}",
        f"parameters  {build.parameter_count(parameters):,}: {parts}",
        f"mesh        {mesh.size} {mesh.devices.flat[0].device_kind} device(s) {axes}".rstrip(),
        f"precision   {build.precision(job.config.model.precision)}",
    ]
    for phase in job.phases:
        shape = (phase.batch_size, phase.max_seq_length)
        flops = trainer.flops(job.rows, shape)
        per_epoch = job.examples(job.corpus, phase).num_examples / phase.batch_size
        lines.append(
            f"phase       {phase.steps:,} steps of {shape[0]} x {shape[1]} tokens, "
            f"{flops / 1e9:,.1f} GFLOPs a step, {phase.steps / per_epoch:.2f} epochs"
        )
    return "\n".join(lines)


def finished(job: Job) -> dict[str, Any] | None:
    """The summary of a run that has done all its steps."""
    summary = read_summary(job.workdir)
    return summary if summary and summary["steps"] >= job.config.num_train_steps else None


def pretrain(job: Job, interrupt: Interrupt, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Trains to the end of the run and sums it up; None where it was interrupted."""
    config, trainer = job.config, job.trainer
    if jax.process_index() == 0:
        _keep_tokenizer(job)
    checkpoints = Checkpoints(
        job.workdir,
        keep=Keep(config.keep_checkpoints, config.keep_best, config.best_metric),
        provenance=_provenance(job),
        say=say,
    )
    with contextlib.closing(checkpoints):
        resumed = checkpoints.resume(trainer.shapes)
        state, remembered = (trainer.create_state(), {})
        if resumed is not None:
            state, record = resumed
            remembered = record.hooks
            say(f"going on from step {record.step:,}")
        with _batches(job, int(state.step)) as batches:
            feed = Feed(batches, trainer.mesh, _flops(job))
            report = Report(config.log_every, feed.work, _peak(job))
            evaluation = Evaluate(config.eval_every, functools.partial(_measure, job))
            state = train(
                state,
                feed,
                trainer.train_step,
                _hooks(job, report, evaluation, checkpoints),
                num_train_steps=config.num_train_steps,
                interrupt=interrupt,
                remembered=remembered,
            )
    if interrupt.stopped:
        return None
    return _summarise(job, state, report, evaluation.newest or _measure(job, state))


def guesses(job: Job, params: Any, count: int = 3) -> list[fill.Guess]:
    """What the model puts in hidden places of examples from all over the held-out text."""
    if job.held_out is None or "mlm" not in job.config.objectives:
        return []
    examples = job.examples(job.held_out, job.phases[-1])
    spread = np.linspace(0, examples.num_examples - 1, count).astype(np.int64)
    batch = examples.build(0, spread)
    return fill.guesses(job.trainer.pretrainer, params, batch, job.tokenizer, seed=job.config.seed)


def _text(
    config: ConfigDict, say: Callable[[str], None], progress: Callable[[Progress], None] | None
) -> tuple[Tokenizer, pathlib.Path]:
    """The run's tokenizer and the folder of its corpus, both made if need be."""
    data = config.data
    if not data.corpus and not data.input:
        raise UserError(
            "no text: set --config.data.corpus=DIR, a prepared corpus, or "
            "--config.data.input='(GLOB,)', raw text"
        )
    if data.corpus and not config.tokenizer.path:
        path = pathlib.Path(data.corpus) / "tokenizer"
    else:
        path = cache.tokenizer_of(data, config.tokenizer, say)
    pieces = tokenizer.load(path)
    return pieces, cache.corpus_of(data, path, pieces.fingerprint, say, progress)


def _keep_tokenizer(job: Job) -> None:
    """Puts the tokenizer where fine-tuning looks for it: with the run."""
    folder = job.workdir / "tokenizer"
    if not folder.exists():
        job.tokenizer.save(str(folder))


def _provenance(job: Job) -> dict[str, str]:
    return {
        "corpus": job.corpus.fingerprint,
        "tokenizer": job.tokenizer.fingerprint,
        "config": configs.fingerprint(job.config, ignoring=_NOT_LEARNED_FROM),
    }


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


def _hooks(job: Job, report: Report, evaluation: Evaluate, checkpoints: Checkpoints) -> list:
    config = job.config
    return [
        report,
        evaluation,
        MetricsFile(job.workdir),
        TensorBoard(job.workdir),
        Display(),
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


def _summarise(
    job: Job, state: TrainState, report: Report, means: Mapping[str, float]
) -> dict[str, Any]:
    """Writes `summary.json`: the last measurement beside the unigram baseline, and the cost."""
    summary: dict[str, Any] = {"status": "complete", "steps": int(state.step)}
    summary |= {
        name.removeprefix(held_out.PREFIX).replace("/", "_"): value for name, value in means.items()
    }
    if job.held_out is not None:
        summary |= held_out.unigram(job.corpus, job.held_out, job.tokenizer.special_ids)
    summary |= {
        "tokens": report.tokens,
        "seconds": report.seconds,
        "updates_skipped": report.updates_skipped,
        "parameters": build.parameter_count(job.trainer.shapes.params),
        **{f"{name}_fingerprint": value for name, value in _provenance(job).items()},
        "config": json.loads(configs.to_json(job.config)),
        "guesses": [dataclasses.asdict(guess) for guess in guesses(job, state.params)],
    }
    if jax.process_index() == 0:
        write_summary(job.workdir, summary)
    return summary
