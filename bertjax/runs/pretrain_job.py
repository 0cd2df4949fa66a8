"""Assemble a pretraining run, checked before the first step: tokenizer, corpus, model, trainer.

prepare      config -> Job; raw text is tokenized into a corpus first
description  Job -> text for the user: data, parameters, mesh, phases
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import ConfigDict

from bertjax import build
from bertjax import config as configs
from bertjax.constraints import with_defaults
from bertjax.corpus.mixture import MixedCorpus, entries_of, phase_weights
from bertjax.data.format import ExampleSource, mean_tokens
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.overrides import scale_warmup
from bertjax.pretrainer import Pretrainer
from bertjax.runs import bucket_sync
from bertjax.runs import examples as runs_examples
from bertjax.runs import initialization as runs_initialization
from bertjax.runs import teachers as runs_teachers
from bertjax.runs.workdir import MUTABLE_FIELDS, without_paths
from bertjax.train.checkpoint import trees
from bertjax.train.state import TrainState
from bertjax.train.trainer import Trainer
from bertjax.validation import config as validation_config

if TYPE_CHECKING:
    from bertjax.corpus.prepare import Progress

_WITHOUT_EFFECT = (
    *(*MUTABLE_FIELDS, "num_train_steps", "budget_seconds", "data.phases", "data.cache"),
)
"""Fields that a resumed checkpoint may differ in."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A run before its first step.

    Attributes:
      workdir: Local folder of the run.
      name: The workdir as given by the user: the same folder, or a bucket, for checkpoints.
      config: Config of the run.
      tokenizer: Tokenizer of the run; None for images. A copy is saved in the workdir.
      corpus: Training split.
      held_out: Held-out split, or None.
      phases: Parts of the run with one batch shape each.
      teachers: Teachers for distillation, by objective.
      trainer: The compiled steps.
      rows: A host batch with the shapes of the last phase.
      initialization: The model that a run without checkpoints starts from; None for a new one.
    """

    workdir: pathlib.Path
    name: str
    config: ConfigDict
    tokenizer: Tokenizer | None
    corpus: Any
    held_out: Any
    phases: list[build.Phase]
    teachers: runs_teachers.Teachers
    trainer: Trainer
    rows: Mapping[str, np.ndarray]
    initialization: runs_initialization.Initialization | None

    @property
    def provenance(self) -> dict[str, str]:
        """Fingerprints of data, tokenizer, config and teachers, which a checkpoint must match."""
        paths = without_paths(configs.flatten(self.config))
        config = configs.replace_fields(self.config, paths)
        return {
            "corpus": self.corpus.fingerprint,
            **({"tokenizer": self.tokenizer.fingerprint} if self.tokenizer else {}),
            "config": configs.fingerprint(config, ignoring=_WITHOUT_EFFECT),
            **runs_teachers.provenance(self.teachers),
        }

    @property
    def former_provenance(self) -> dict[str, str]:
        """Fingerprints of older checkpoints, whose config included the paths of the data."""
        return {"config": configs.fingerprint(self.config, ignoring=_WITHOUT_EFFECT)}

    def create_state(self) -> TrainState:
        """The state before the first step."""
        if self.initialization is None:
            return self.trainer.create_state()
        return self.initialization.create_state(self.trainer)

    def examples(
        self,
        corpus: Any,
        phase: build.Phase,
        skipped: Mapping[str, int] = MappingProxyType({}),
    ) -> ExampleSource:
        """The examples of a split at the length of a phase; see `runs.examples.examples`."""
        rows = phase.batch_size if corpus is self.corpus else 1
        return runs_examples.examples(self.config, corpus, self.tokenizer, phase, rows, skipped)

    def mixture_usage(self, num_steps: int | None = None) -> dict[str, dict[str, float]]:
        """The examples, tokens, epochs and token shares of each corpus of a mixture; else {}.

        Args:
          num_steps: Number of steps that have been done; None for those of all phases.
        """
        used: dict[str, dict[str, float]] = {}
        if not isinstance(self.corpus, MixedCorpus):
            return used
        left = sum(phase.steps for phase in self.phases) if num_steps is None else num_steps
        for phase in self.phases:
            steps = min(phase.steps, left)
            left -= steps
            usage = self.examples(self.corpus, phase).usage(steps * phase.batch_size)
            for name, counts in usage.items():
                before = used.get(name, dict.fromkeys(counts, 0))
                used[name] = {key: before[key] + count for key, count in counts.items()}
        total = sum(counts["tokens"] for counts in used.values()) or 1.0
        return {
            name: counts | {"token_share": counts["tokens"] / total}
            for name, counts in used.items()
        }


def prepare(
    config: ConfigDict,
    workdir: str,
    log: Callable[[str], None],
    progress: "Callable[[Progress], None] | None" = None,
) -> Job:
    """Reads or makes tokenizer and corpus, builds the trainer and checks everything before step 1.

    Raises:
      UserError: an input is missing, or does not match the others.
    """
    build.check(config)
    runs_examples.check(config)
    phases = _phases(config)
    mesh = build.make_mesh(config, phases)
    teachers = runs_teachers.find(config.objectives, config.mesh.attention_kernel)
    tokenizer, corpus, held_out = runs_examples.read_data(config, log, progress)
    _warn_about_best(config, held_out, log)
    _warn_about_predictions(config, phases, log)
    max_length = max(phase.max_seq_length for phase in phases)
    for teacher in teachers.values():
        teacher.check(config, tokenizer, max_length)
    last = phases[-1]
    examples = runs_examples.examples(config, corpus, tokenizer, last)
    if held_out is not None:  # checks that it has enough documents, before the first step
        runs_examples.examples(config, held_out, tokenizer, last)
    rows = examples.build(0, np.zeros(1, np.int64))
    rows["example_weight"] = np.ones(1, np.float32)
    objectives = runs_teachers.objectives(
        config.objectives, build.tokenizer_fields(config, tokenizer), teachers
    )
    pretrainer = Pretrainer(build.encoder(config.model), objectives, build.encode(config))
    frozen = runs_teachers.frozen_params(teachers)
    trainer = build.trainer(config, pretrainer, mesh, rows, phases=phases, frozen=frozen)
    return Job(
        workdir=bucket_sync.local_path(workdir),
        name=workdir,
        config=config,
        tokenizer=tokenizer,
        corpus=corpus,
        held_out=held_out,
        phases=phases,
        teachers=teachers,
        trainer=trainer,
        rows=rows,
        initialization=(
            runs_initialization.find(config, tokenizer, trainer) if "init" in config else None
        ),
    )


def epochs_to_steps(
    config: ConfigDict,
    log: Callable[[str], None],
    progress: "Callable[[Progress], None] | None" = None,
) -> ConfigDict:
    """Returns a copy with `num_train_steps` in place of `num_train_epochs`; reads the data.

    Raises:
      UserError: phases or a mixture, or an error of the data.
    """
    epochs, before = config.num_train_epochs, config.num_train_steps
    if config.data.phases or entries_of(config.data):
        reason = (
            "phases, which are counted in steps; set --config.data.phases='()'"
            if config.data.phases
            else "a mixture, whose corpora have epochs of their own; set num_train_tokens"
        )
        raise UserError(f"config.num_train_epochs: got {epochs} with {reason}")
    runs_examples.check(config)
    tokenizer, corpus, _ = runs_examples.read_data(config, log, progress)
    (phase,) = build.phases(config)
    examples = runs_examples.examples(config, corpus, tokenizer, phase, phase.batch_size)
    steps = max(round(epochs * examples.num_examples / phase.batch_size), 1)
    config = configs.replace_fields(config, {"num_train_steps": steps})
    with config.unlocked():
        del config.num_train_epochs
        scale_warmup(config, before, log)
    return config


def _phases(config: ConfigDict) -> list[build.Phase]:
    """The phases of a run, with the weights of its mixture."""
    phases = build.phases(config)
    weights = phase_weights(entries_of(config.data), len(phases))
    return [
        dataclasses.replace(phase, mixture=mixture)
        for phase, mixture in zip(phases, weights, strict=True)
    ]


def _warn_about_best(config: ConfigDict, held_out: Any, log: Callable[[str], None]) -> None:
    """Warns if `keep_best` has no effect or compares only few checkpoints."""
    if not config.keep_best:
        return
    evals, checkpoints = config.eval_every, config.checkpoint_every
    if held_out is None:
        log(
            f"warning: there are no held-out examples, so config.best_metric={config.best_metric} "
            "is never measured and keep_best keeps nothing; hold out some, or set "
            "--config.keep_best=0"
        )
    elif evals and checkpoints and checkpoints % evals and evals % checkpoints:
        log(
            f"warning: evaluations every {evals:,} steps and checkpoints every {checkpoints:,}: "
            f"keep_best compares steps with both, every {math.lcm(evals, checkpoints):,}; make one "
            "of them a multiple of the other"
        )


def _warn_about_predictions(
    config: ConfigDict, phases: Sequence[build.Phase], log: Callable[[str], None]
) -> None:
    """Warns if `max_predictions_per_seq` masks less than `masked_lm_prob`."""
    for name, module in validation_config.objective_modules(config).items():
        fields = with_defaults(module, config.objectives[name])
        limit, share = fields.get("max_predictions_per_seq"), fields.get("masked_lm_prob")
        for length in sorted({phase.max_seq_length for phase in phases}):
            if limit and share and limit < int(share * length):
                log(
                    f"warning: config.objectives.{name}.max_predictions_per_seq: got {limit}, "
                    f"expected >= {math.ceil(share * length)} for masked_lm_prob={share} of "
                    f"{length} tokens; raise it, since only {limit / length:.1%} are predicted"
                )


def description(job: Job) -> str:
    """Corpus, tokenizer, parameters, mesh, precision, and shapes and FLOPs of each phase."""
    mesh, trainer = job.trainer.mesh, job.trainer
    parameters = trainer.shapes.params
    parts = ", ".join(f"{name} {trees.num_parameters(tree):,}" for name, tree in parameters.items())
    axes = " x ".join(f"{axis}={size}" for axis, size in mesh.shape.items() if size > 1)
    lines = [
        *_description_of_data(job),
        f"parameters  {trees.num_parameters(parameters):,}: {parts}",
        f"mesh        {mesh.size} {mesh.devices.flat[0].device_kind} device(s) {axes}".rstrip(),
        f"precision   {build.precision(job.config.model)}",
    ]
    if job.initialization is not None:
        lines.append(job.initialization.description())
    for name, teacher in job.teachers.items():
        count = trees.num_parameters(trainer.frozen[name])
        lines.append(f"teacher     {count:,} of {teacher.origin.checkpoint}, for {name}: frozen")
    for phase in job.phases:
        shape = (phase.batch_size, phase.max_seq_length)
        flops = trainer.flops(job.rows, shape)
        cut = f" in {phase.microbatches} parts" if phase.microbatches > 1 else ""
        lines.append(
            f"phase       {phase.steps:,} steps of {shape[0]} x {shape[1]} tokens{cut}, "
            f"{flops / 1e9:,.1f} GFLOPs a step{_description_of_examples(job, phase)}"
        )
    return "\n".join(lines)


def _description_of_examples(job: Job, phase: build.Phase) -> str:
    """Number of epochs, except of a mixture, whose corpora have their own, and padding of text."""
    examples = job.examples(job.corpus, phase)
    per_epoch = examples.num_examples / phase.batch_size
    is_mixed = isinstance(job.corpus, MixedCorpus)
    epochs = "" if is_mixed else f", {phase.steps / per_epoch:.2f} epochs"
    if job.tokenizer is None:
        return epochs
    return f"{epochs}, {1 - mean_tokens(examples) / phase.max_seq_length:.1%} padding"


def _description_of_data(job: Job) -> list[str]:
    corpus, held_out = job.corpus, job.held_out
    if job.tokenizer is None:
        size = len(held_out) if held_out else 0
        return [f"images      {corpus.path}: {len(corpus):,}; held out {size:,}"]
    usage = job.mixture_usage()
    return [
        f"corpus      {corpus.path}: {corpus.num_documents:,} documents, {corpus.num_tokens:,} "
        f"tokens; held out {held_out.num_documents if held_out else 0:,} documents",
        *(
            f"mixture     {name}: {counts['token_share']:.1%} of the tokens, "
            f"{counts['epochs']:.2f} epochs"
            for name, counts in usage.items()
        ),
        f"tokenizer   {job.tokenizer.vocab_size:,} pieces, {job.tokenizer.fingerprint[:16]}",
    ]
