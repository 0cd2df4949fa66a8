"""Fine-tuning: from a pretrained run and a task to the scores of several seeds.

prepare    recipe, run, data -> Job: what all seeds share, checked before the first step
fine_tune  Job, seed -> result: the loop and the step of pretraining, one task as objective
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
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import build, catalog
from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.interfaces import Dataset, Tokenizer
from bertjax.io import copies, storage
from bertjax.layers.dense import NAMED
from bertjax.pretrained import tokenizer_folder
from bertjax.pretrainer import Pretrainer
from bertjax.runs import examples, results
from bertjax.runs import teachers as runs_teachers
from bertjax.runtime.chips import peak_flops_per_second
from bertjax.runtime.interrupt import Interrupt
from bertjax.tasks.dataset import EncodingSpec
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train import epochs
from bertjax.train import evaluate as train_evaluate
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import trees
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.checkpoint.retention import Keep
from bertjax.train.feed import Feed
from bertjax.train.hooks import SaveCheckpoints, StopWhenNotFinite, Watchdog
from bertjax.train.loop import train
from bertjax.train.report import Report
from bertjax.train.sharding import RULES, check_batch_size, local_rows
from bertjax.train.state import TrainState
from bertjax.train.trainer import Trainer, for_seeds
from bertjax.train.writers import Display, MetricsFile, TensorBoard
from bertjax.validation import config as validation_config

FREE_FIELDS = (
    *("log_every", "keep_checkpoints", "watchdog_minutes", "mesh", "mesh.*"),
    "objectives.*.teacher",
    *("data.microbatches", "data.eval_batch_size", "model.remat", "model.unroll"),
)
"""What may change between two starts of a job: none of it changes what is learned."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What all seeds share.

    Attributes:
      workdir: Where everything goes.
      config: The recipe, completed by the pretrained model and by what the data says.
      origin: Where the encoder comes from.
      tokenizer: A copy of it lies in the workdir.
      dataset: The examples.
      pretrainer: The encoder with the task, and with further objectives if the recipe has any.
      teachers: Whom these learn from, by their names.
      mesh: The devices.
    """

    workdir: pathlib.Path
    config: ConfigDict
    origin: checkpoint_origin.PretrainedSource
    tokenizer: Tokenizer
    dataset: Dataset
    pretrainer: Pretrainer
    teachers: runs_teachers.Teachers
    mesh: Mesh

    @functools.cached_property
    def predict_step(self) -> Callable[[str], train_evaluate.PredictStep]:
        """What predicts a split; compiled once for all seeds."""
        step = train_evaluate.make_predict_step(self.pretrainer, self.mesh)
        return lambda split: step

    @functools.cached_property
    def trainer(self) -> Callable[[int], Trainer]:
        """What is compiled, for a seed; compiled once for all of them."""
        _, batch = next(self.dataset.batches["train"].training_batches())
        parts = self.config, self.pretrainer, self.mesh, batch
        return for_seeds(
            build.trainer(*parts, frozen=runs_teachers.frozen(self.teachers)),
            build.make_optimizer(self.config),
            build.make_schedule(self.config),
            batch,
            rules=(*self.config.mesh.rules, *RULES),
            attention_kernel=self.config.mesh.attention_kernel,
        )

    @property
    def shapes(self) -> PyTree:
        """The parameters as shapes."""
        return self.trainer(self.config.seed).shapes.params

    def seeded(self, seed: int) -> ConfigDict:
        """The config of one seed."""
        config = configs.from_json(configs.to_json(self.config))
        with config.unlocked():
            config.seed = seed
        return config

    @functools.cached_property
    def peak_flops_per_second(self) -> float | None:
        """What the devices can do at most."""
        precision = NAMED[build.precision(self.config.model.precision)]
        return peak_flops_per_second(list(self.mesh.devices.flat), precision.operands)

    def folder(self, seed: int) -> pathlib.Path:
        """Where a seed's files go."""
        return self.workdir / f"seed_{seed}"

    def predictions(self, state: TrainState, split: str) -> np.ndarray:
        """Those of every sequence of a split."""
        batches = self.dataset.batches[split]
        numbered = batches.evaluation_batches(local_rows(batches.batch_size, self.mesh))
        step, size = self.predict_step(split), batches.num_examples
        return train_evaluate.predict(step, state.params, numbered, size, self.mesh)

    def evaluate(
        self, seed: int, state: TrainState, epoch: int, before: list[epochs.Epoch]
    ) -> dict[str, float]:
        """Scores of the dev splits; for an epoch that may be chosen, predictions of all splits."""
        return results.score_epoch(
            self.dataset,
            self.config,
            functools.partial(self.predictions, state),
            epoch=epoch,
            before=before,
            folder=self.folder(seed),
        )


def prepare(recipe: ConfigDict, *, init: str, data: str, workdir: str) -> Job:
    """Reads everything, and checks it before the first step.

    Args:
      recipe: As `configs/glue.py` makes it.
      init: See `transfer.find`.
      data: Where the task's examples are: see `tasks/NAME/dataset.py`.
      workdir: Where results go.

    Raises:
      UserError: something is missing or does not fit.
    """
    build.check(recipe)
    origin = checkpoint_origin.resolve(init)
    config = with_origin(recipe, origin)
    tokenizer = load_tokenizer(tokenizer_folder(origin))
    build.check_vocabulary(config, tokenizer, build.extra_ids(origin.config))
    dataset = read(config, data, tokenizer)
    config = with_numbers(config, dataset)
    sections = config.objectives if "objectives" in config else {}
    teachers = runs_teachers.find(sections)
    for teacher in teachers.values():
        teacher.check(config, tokenizer, config.data.max_seq_length)
    more = runs_teachers.objectives(sections, build.tokenizer_fields(config, tokenizer), teachers)
    heads = {config.task.name: build.task(config.task), **more}
    pretrainer = Pretrainer(build.encoder(config.model), heads, build.encode(config))
    job = Job(
        workdir=pathlib.Path(workdir),
        config=config,
        origin=origin,
        tokenizer=tokenizer,
        dataset=dataset,
        pretrainer=pretrainer,
        teachers=teachers,
        mesh=mesh_of(config),
    )
    for part in transferred_parts(job):
        checkpoint_origin.check(origin.checkpoint, job.shapes, part)
    return job


def transferred_parts(job: Job) -> list[str]:
    """What continues as it was: the encoder, and objectives that the run before had as well."""
    if job.origin.checkpoint is None:
        return []
    names = checkpoint_folder.read_record(job.origin.checkpoint).arrays
    before = {name.split("/")[1] for name in names if name.startswith("params/")}
    objectives = job.config.objectives if "objectives" in job.config else {}
    return ["encoder", *(name for name in job.shapes if name in before and name in objectives)]


def fine_tune(job: Job, seed: int, interrupt: Interrupt) -> results.Result | None:
    """Trains a seed to the end and scores it; None where it was interrupted.

    A seed that was interrupted continues from its newest checkpoint.
    """
    storage.make_folder(job.folder(seed))
    if jax.process_index() == 0 and not (job.workdir / "tokenizer").exists():
        job.tokenizer.save(str(job.workdir / "tokenizer"))
    config, trainer = job.seeded(seed), job.trainer(seed)
    batches = dataclasses.replace(job.dataset.batches["train"], seed=seed)
    keep = Keep(latest=1, best=int(config.choose_epoch == "best"), metric=results.SCORE, mode="max")
    provenance = {
        "config": configs.fingerprint(config, ignoring=FREE_FIELDS),
        **runs_teachers.provenance(job.teachers),
    }
    evaluation = epochs.EvaluateEpochs(
        batches.batches_per_epoch, functools.partial(job.evaluate, seed)
    )
    checkpoints = Checkpoints(job.folder(seed), keep=keep, provenance=provenance)
    with contextlib.closing(checkpoints):
        state, restored = begin(job, trainer, checkpoints)
        evaluation.restore(restored.get(evaluation.name, {}))
        first_step = int(state.step)
        if first_step < config.num_train_steps:
            rows = local_rows(batches.batch_size, job.mesh)
            feed = Feed(batches.training_batches(first_step, rows), job.mesh, _flops(job, trainer))
            train(
                state,
                feed,
                trainer.train_step,
                [
                    Report(config.log_every, feed.work, job.peak_flops_per_second),
                    evaluation,
                    MetricsFile(job.folder(seed)),
                    TensorBoard(job.folder(seed)),
                    Display(),
                    Watchdog(config.watchdog_minutes),
                    StopWhenNotFinite(config.max_skipped_in_a_row),
                    SaveCheckpoints(batches.batches_per_epoch, checkpoints),
                ],
                num_train_steps=config.num_train_steps,
                interrupt=interrupt,
                restored=restored,
            )
    if interrupt.stopped:
        return None
    return results.finish(job.folder(seed), config, evaluation.epochs)


def begin(
    job: Job, trainer: Trainer, checkpoints: Checkpoints
) -> tuple[TrainState, Mapping[str, Any]]:
    """The state to continue from, and what the hooks remember of the way there."""
    resumed = checkpoints.resume(trainer.shapes)
    if resumed is not None:
        state, record = resumed
        return state, record.hooks
    state = trainer.create_state()
    for part in transferred_parts(job):
        params = checkpoint_origin.load_params(job.origin.checkpoint, state.params, part)
        state = state.replace(params=params)
    return state, {}


def _flops(job: Job, trainer: Trainer) -> Callable[[tuple[int, ...]], float]:
    _, rows = next(job.dataset.batches["train"].training_batches())
    return functools.cache(lambda shape: trainer.flops(rows, shape))


def with_origin(recipe: ConfigDict, origin: checkpoint_origin.PretrainedSource) -> ConfigDict:
    """The recipe with the whole pretrained model in place of the few fields that it sets.

    Raises:
      UserError: the model has no such field, or not enough positions.
    """
    config = configs.from_json(configs.to_json(recipe))
    model = configs.from_json(json.dumps(origin.config["model"]))
    known = build.model_fields(model)
    with config.unlocked(), model.unlocked():
        for name, value in recipe.model.items():
            if value is None or model.get(name) == value:
                continue
            if name not in known:
                raise UserError(
                    f"the model of {origin.run} has no field {name}: set --config.model.{name}=none"
                )
            model[name] = value
        validation_config.check_model(model)
        config.model = model
        config.init = origin.description()
        if extra := build.extra_ids(origin.config):
            config.init.extra_ids = extra
    max_length = build.positions(model)
    if config.data.max_seq_length > max_length:
        raise UserError(
            f"config.data.max_seq_length={config.data.max_seq_length} exceeds "
            f"max_position_embeddings={model.max_position_embeddings} of {origin.run}, which holds "
            f"{max_length} tokens: lower it"
        )
    return config


def read(config: ConfigDict, data: str, tokenizer: Tokenizer) -> Dataset:
    """The examples of the config's task, as its model reads them.

    Raises:
      UserError: something is missing or does not fit.
    """
    fields = config.data
    wanted = EncodingSpec(
        tokenizer=tokenizer,
        max_seq_length=fields.max_seq_length,
        cls_last=build.cls_last(config.model),
        max_chars_per_word=examples.max_chars_per_word(config.model),
        takes_positions="max_position_embeddings" in config.model,
        batch_size=fields.batch_size,
        eval_batch_size=fields.eval_batch_size,
        padded_lengths=fields.padded_lengths,
        batches_per_group=fields.batches_per_group,
        max_train_examples=config.max_train_examples,
        seed=config.seed,
    )
    data = str(copies.local_copy(data))
    return catalog.load("tasks", config.task.name, "dataset").Dataset(
        data, config.task, fields, wanted
    )


def with_numbers(config: ConfigDict, dataset: Dataset) -> ConfigDict:
    """The config with what follows from the data: classes, steps, warmup, a fingerprint."""
    steps = config.num_train_epochs * dataset.batches["train"].batches_per_epoch
    if steps < 1:
        raise UserError(f"the train split of {dataset.name}: got no example, expected one or more")
    with config.unlocked():
        config.num_train_steps = steps
        config.optimizer.warmup_steps = round(config.optimizer.warmup_share * steps)
        config.task.update(dataset.task_fields)
        contents = {name: split.contents() for name, split in dataset.batches.items()}
        config.data.fingerprint = trees.fingerprint(contents)
    return config


def mesh_of(config: ConfigDict) -> Mesh:
    """The devices of a run, over which its batches divide."""
    mesh = build.make_mesh(config)
    check_batch_size(config.data.batch_size, mesh, config.data.microbatches)
    check_batch_size(config.data.eval_batch_size, mesh)
    return mesh
