"""Pretrain an encoder from a config: text to corpus, training to the last step, summary.

pretrain   config, workdir -> PretrainingResult: everything that `bertjax pretrain` does
train_job  Job -> summary: the training of a run whose data is prepared
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
from ml_collections import ConfigDict

from bertjax import build
from bertjax import config as configs
from bertjax.corpus.mixture import MixedCorpus
from bertjax.data.pipeline import Phase, phased_batches
from bertjax.errors import Interrupted, UserError
from bertjax.interfaces import Params
from bertjax.runs import bucket_sync, held_out, initialization, pretrain_job, session
from bertjax.runs.examples import continued_phases
from bertjax.runs.pretrain_job import Job
from bertjax.runs.workdir import is_complete, read_summary, write_summary
from bertjax.runtime import distributed, host
from bertjax.runtime.interrupt import Interrupt
from bertjax.train.checkpoint import trees
from bertjax.train.checkpoint.folder import Retention
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.evaluate import HELD_OUT
from bertjax.train.hooks import Evaluate
from bertjax.train.sharding import local_rows
from bertjax.train.state import TrainState

if TYPE_CHECKING:
    from bertjax.corpus.prepare import Progress

Predict = Callable[[Job, Params], list[dict[str, Any]]]
"""Example predictions of a trained model on its held-out text, for the summary."""

ProgressDisplay = Callable[
    [], contextlib.AbstractContextManager["Callable[[Progress], None] | None"]
]
"""A display that is open while a corpus is prepared, and its function to update it."""


@dataclasses.dataclass(frozen=True)
class PretrainingResult:
    """A pretraining run that has reached its last step.

    Attributes:
      workdir: The path or URL given by the user.
      summary: Content of `summary.json`: held-out metrics, costs, fingerprints, the config.
      num_steps_trained: Optimizer steps of this call; 0 if the run was complete before.
    """

    workdir: str
    summary: Mapping[str, Any]
    num_steps_trained: int


def pretrain(
    config: ConfigDict,
    workdir: str,
    *,
    init: str = "",
    init_overrides: Mapping[str, Any] = MappingProxyType({}),
    init_optimizer: bool = False,
    log: session.Log = lambda line: None,
    progress: ProgressDisplay = contextlib.nullcontext,
    predict: Predict = lambda job, params: [],
) -> PretrainingResult:
    """Pretrains to the last step; a run that was stopped resumes from its newest checkpoint.

    >>> text = {"data.input": ("text/*.txt",), "data.validation_fraction": 0.3}
    >>> tokenizer = {"tokenizer.path": "vocab", "model.vocab_size": 200}
    >>> config = bertjax.load_config("quickstart", {**text, **tokenizer, "num_train_steps": 2})
    >>> bertjax.pretrain(config, "runs/own").summary["steps"]
    2

    Args:
      config: A config as returned by a file of `configs/`.
      workdir: Folder of the run, or gs://...
      init: The model that training starts from: RUN, RUN@STEP, RUN@best or a Hugging Face folder.
        Its fields replace those of `config.model`, whatever these are.
      init_overrides: Changes of the fields of that model, by dotted name: other dropout, more
        positions, another number of layers, as in `{"model.hidden_dropout_prob": 0.0}`.
      init_optimizer: Whether the state of the model's optimizer is loaded too.
      log: Logs one line.
      progress: Makes the display of a corpus that is prepared.
      predict: Example predictions for the summary.

    Raises:
      UserError: an input is missing, or does not match the others.
      Interrupted: Ctrl-C or SIGTERM; a checkpoint is saved, the same call resumes the run.
    """
    host.tune_for_cpu()
    configs.check_type(config)
    others = [name for name in init_overrides if not name.startswith("model.")]
    if others:
        raise UserError(
            f"init_overrides: got {others[0]!r}, expected fields of the model, such as "
            "'model.hidden_dropout_prob'; set the others in the config"
        )
    if init:
        config = initialization.with_model(config, init, optimizer=init_optimizer)
        config = configs.replace_fields(config, init_overrides)
    elif init_overrides or init_optimizer:
        raise UserError(
            "init_overrides, init_optimizer: got a value without init, which they belong to; "
            "leave them out, or pass init"
        )
    build.check(config)
    if "num_train_epochs" in config:
        with progress() as show:
            config = pretrain_job.epochs_to_steps(config, log, show)
    distributed.check_identical(config=configs.fingerprint(config), workdir=workdir)
    folder = bucket_sync.local_folder(workdir)
    with session.lock_workdir(folder, json.loads(configs.to_json(config))):
        with progress() as show:
            job = pretrain_job.prepare(config, workdir, log, show)
        distributed.check_identical("prepared data", **job.provenance)
        log(pretrain_job.description(job))
        if summary := read_complete_summary(job):
            return PretrainingResult(workdir, summary, 0)
        with session.open_session(folder, workdir, log) as interrupt:
            summary, first_step = train_job(job, interrupt, log, predict)
    if summary is None:
        raise Interrupted("stopped and saved", interrupt.exit_code)
    return PretrainingResult(workdir, summary, summary["steps"] - first_step)


def read_complete_summary(job: Job) -> dict[str, Any] | None:
    """The summary of a run that has done all its steps or spent its budget, else None.

    Raises:
      UserError: the run was trained with another corpus, tokenizer or teacher.
    """
    summary, budget = read_summary(job.workdir), build.run_field(job.config, "budget_seconds")
    if summary is None or not is_complete(summary, job.config.num_train_steps, budget):
        return None
    for kind, got in job.provenance.items():
        if kind == "config":  # `lock_workdir` has compared its fields
            continue
        if (expected := summary.get(f"{kind}_fingerprint", got)) != got:
            raise UserError(
                f"{job.name} was trained with another {kind}: got fingerprint {got[:16]}, expected "
                f"{expected[:16]}; use the {kind} of the run, or another --workdir"
            )
    return summary


def train_job(
    job: Job, interrupt: Interrupt, log: session.Log, predict: Predict
) -> tuple[dict[str, Any] | None, int]:
    """Trains to the last step and writes `summary.json`.

    Returns:
      The summary, None if training was interrupted; and the steps done before this call.
    """
    config = job.config
    if jax.process_index() == 0 and job.tokenizer is not None:
        _save_tokenizer(job)
    evaluation = Evaluate(config.eval_every, functools.partial(_evaluate, job, interrupt))
    fitted = session.fit(
        config,
        job.trainer,
        folder=job.workdir,
        checkpoints=Checkpoints(
            job.name,
            keep=Retention(
                config.keep_checkpoints, config.keep_best, config.best_metric, config.best_mode
            ),
            provenance=job.provenance,
            former_provenance=job.former_provenance,
            log=log,
        ),
        checkpoint_intervals=[config.checkpoint_every],
        init_state=job.create_state,
        batches=functools.partial(_batches, job),
        example_batch=job.rows,
        evaluation=evaluation,
        interrupt=interrupt,
        log=log,
        budget_seconds=build.run_field(config, "budget_seconds"),
    )
    if interrupt.stopped:
        return None, fitted.first_step
    costs = {**fitted.costs, "guesses": predict(job, fitted.state.evaluation_params)}
    return _summarise(job, fitted.state, costs, evaluation.newest), fitted.first_step


def _save_tokenizer(job: Job) -> None:
    """Saves the tokenizer in the workdir, where fine-tuning reads it."""
    folder = job.workdir / "tokenizer"
    if job.tokenizer is not None and not folder.exists():
        job.tokenizer.save(str(folder))


def _batches(job: Job, start_step: int):
    make = functools.partial(job.examples, job.corpus)
    phases = [
        Phase(
            phase.steps,
            examples,
            phase.batch_size,
            local_rows(phase.batch_size, job.trainer.mesh),
            first_position,
        )
        for phase, examples, first_position in continued_phases(job.config, job.phases, make)
    ]
    return phased_batches(phases, start_step=start_step)


def _evaluate(job: Job, interrupt: Interrupt, state: TrainState) -> dict[str, float]:
    if job.held_out is None:
        return {}
    last, limit = job.phases[-1], job.config.eval_examples

    def measure(split: Any, limit: int) -> dict[str, float]:
        return held_out.measure(
            job.trainer,
            state.evaluation_params,
            job.examples(split, last),
            batch_size=last.batch_size,
            interrupt=interrupt,
            limit=limit,
        )

    means = measure(job.held_out, limit)
    parts = job.held_out.parts if isinstance(job.held_out, MixedCorpus) else {}
    if len(parts) > 1:
        for corpus, part in parts.items():
            means |= held_out.name_by_corpus(corpus, measure(part, -(-limit // len(parts))))
    return means


def _unigram(job: Job) -> dict[str, float]:
    """Loss and accuracy of the unigram baseline on the run's held-out tokens."""
    assert job.tokenizer is not None
    options: dict[str, Any] = {}
    for make in job.trainer.pretrainer.objectives.values():
        options |= make().unigram_options()
    return held_out.unigram(job.corpus, job.held_out, job.tokenizer.special_ids, **options)


def _summarise(
    job: Job, state: TrainState, costs: Mapping[str, Any], means: Mapping[str, float]
) -> dict[str, Any]:
    """Writes `summary.json`: last evaluation, unigram baseline, costs, fingerprints, config."""
    summary: dict[str, Any] = {"status": "complete", "steps": int(state.step)}
    summary |= {
        name.removeprefix(HELD_OUT).replace("/", "_"): value for name, value in means.items()
    }
    if job.held_out is not None and job.tokenizer is not None:
        summary |= _unigram(job)
    summary |= {
        **costs,
        **({"mixture": usage} if (usage := job.mixture_usage(int(state.step))) else {}),
        "parameters": trees.num_parameters(job.trainer.shapes.params),
        **{f"{name}_fingerprint": value for name, value in job.provenance.items()},
        "config": json.loads(configs.to_json(job.config)),
    }
    if jax.process_index() == 0:
        write_summary(job.workdir, summary)
    return summary
