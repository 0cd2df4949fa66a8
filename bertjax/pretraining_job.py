"""A pretraining run before its first step: everything is made, checked, and can be told.

prepare      config -> Job: text becomes a corpus where it must
description  Job -> what a person wants to know before it runs
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import numpy as np
from ml_collections import ConfigDict

from bertjax import build, model_input, teaching
from bertjax import config as configs
from bertjax.data import cache, tokenizer
from bertjax.data.examples import Examples
from bertjax.data.prepare import Progress
from bertjax.data.records import Corpus, check_tokenizer, open_corpus, read_manifest
from bertjax.errors import UserError
from bertjax.interfaces import Pretrainer, Tokenizer
from bertjax.train.trainer import Trainer
from bertjax.train.workdir import FREE_FIELDS

_NOT_LEARNED_FROM = (*FREE_FIELDS, "num_train_steps", "data.phases", "data.cache")
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
      teachers: Whom objectives learn from, by their names.
      trainer: What is compiled.
      rows: A host batch: its shapes are those of the last phase.
    """

    workdir: pathlib.Path
    config: ConfigDict
    tokenizer: Tokenizer
    corpus: Corpus
    held_out: Corpus | None
    phases: list[build.Phase]
    teachers: teaching.Teachers
    trainer: Trainer
    rows: Mapping[str, np.ndarray]

    @property
    def provenance(self) -> dict[str, str]:
        """Fingerprints of what the run learns from: a checkpoint of others is not its own."""
        return {
            "corpus": self.corpus.fingerprint,
            "tokenizer": self.tokenizer.fingerprint,
            "config": configs.fingerprint(self.config, ignoring=_NOT_LEARNED_FROM),
            **teaching.provenance(self.teachers),
        }

    def examples(self, corpus: Corpus, phase: build.Phase) -> Examples:
        """The examples of a split at the length of a phase."""
        rows = phase.batch_size if corpus is self.corpus else 1
        made = build.examples(self.config, corpus, self.tokenizer, phase.max_seq_length, rows)
        return model_input.completed(self.config.model, made, self.tokenizer)


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
    teachers = teaching.find(config.objectives)
    pieces, corpus_path = _text(config, say, progress)
    build.check_vocabulary(config, pieces)
    corpus = open_corpus(corpus_path)
    check_tokenizer(corpus, pieces)
    longest = max(phase.max_seq_length for phase in phases)
    for teacher in teachers.values():
        teacher.check(config, pieces, longest)
    splits = read_manifest(corpus_path)["splits"]
    unseen = open_corpus(corpus_path, "validation") if "validation" in splits else None
    last = phases[-1]
    examples = build.examples(config, corpus, pieces, last.max_seq_length)
    examples = model_input.completed(config.model, examples, pieces)
    rows = examples.build(0, np.zeros(1, np.int64))
    rows["example_weight"] = np.ones(1, np.float32)
    objectives = teaching.objectives(config.objectives, build.facts(config, pieces), teachers)
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    trainer = build.trainer(
        config,
        pretrainer,
        mesh,
        rows,
        batch_size=last.batch_size,
        frozen=teaching.frozen(teachers),
    )
    return Job(
        workdir=pathlib.Path(workdir),
        config=config,
        tokenizer=pieces,
        corpus=corpus,
        held_out=unseen,
        phases=phases,
        teachers=teachers,
        trainer=trainer,
        rows=rows,
    )


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
    for name, teacher in job.teachers.items():
        count = build.parameter_count(trainer.frozen[name])
        lines.append(f"teacher     {count:,} of {teacher.origin.checkpoint}, for {name}: frozen")
    for phase in job.phases:
        shape = (phase.batch_size, phase.max_seq_length)
        flops = trainer.flops(job.rows, shape)
        per_epoch = job.examples(job.corpus, phase).num_examples / phase.batch_size
        lines.append(
            f"phase       {phase.steps:,} steps of {shape[0]} x {shape[1]} tokens, "
            f"{flops / 1e9:,.1f} GFLOPs a step, {phase.steps / per_epoch:.2f} epochs"
        )
    return "\n".join(lines)


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
    if data.corpus:
        read_manifest(data.corpus)
    if data.corpus and not config.tokenizer.path:
        path = pathlib.Path(data.corpus) / "tokenizer"
    else:
        path = cache.tokenizer_of(data, config.tokenizer, say)
    pieces = tokenizer.load(path)
    return pieces, cache.corpus_of(data, path, pieces.fingerprint, say, progress)
