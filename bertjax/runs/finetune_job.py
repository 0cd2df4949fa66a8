"""Prepare a fine-tuning run: pretrained model, task data, head, mesh, all checked before step 1.

prepare      recipe, pretrained run, data -> Job
init_state   Job, Trainer -> state with the pretrained parameters
description  Job -> text for the user: examples, parameters, steps
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import build, catalog
from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.interfaces import Dataset, Tokenizer
from bertjax.io import copies
from bertjax.pretrained import tokenizer_folder
from bertjax.pretrainer import Pretrainer
from bertjax.runs import examples, packing, results
from bertjax.runs import teachers as runs_teachers
from bertjax.runtime.interrupt import Interrupt
from bertjax.tasks.dataset import EncodingSpec
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train import epochs
from bertjax.train import evaluate as train_evaluate
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import trees
from bertjax.train.sharding import RULES, check_batch_size, local_rows
from bertjax.train.state import TrainState
from bertjax.train.trainer import Trainer, make_seed_trainers
from bertjax.validation import config as validation_config

MUTABLE_FIELDS = (
    *("log_every", "checkpoint_every", "keep_checkpoints", "watchdog_minutes", "mesh", "mesh.*"),
    *("tensorboard", "trackers", "objectives.*.teacher"),
    *("data.microbatches", "data.eval_batch_size", "model.remat", "model.unroll"),
)
"""Fields that may change when a run is resumed: none of them changes the result."""

_MAX_NAMES = 5


@dataclasses.dataclass(frozen=True)
class Job:
    """A fine-tuning run whose data is read and checked; shared by all of its seeds.

    Attributes:
      workdir: Folder of the run on this machine.
      config: The recipe with the pretrained model's fields and those that follow from the data.
      origin: The pretrained checkpoint.
      tokenizer: Tokenizer of the pretrained model; a copy is saved in the workdir.
      dataset: Examples, batches and metrics of the task.
      pretrainer: The encoder with the task's head, and with the recipe's further objectives.
      teachers: Teachers for distillation, by objective.
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
        """The compiled prediction step of a split; compiled once for all seeds."""
        step = train_evaluate.make_predict_step(self.pretrainer, self.mesh)
        return lambda split: step

    @functools.cached_property
    def trainer(self) -> Callable[[int], Trainer]:
        """The trainer of a seed; its steps are compiled once for all seeds."""
        parts = self.config, self.pretrainer, self.mesh, self.example_batch
        return make_seed_trainers(
            build.trainer(*parts, frozen=runs_teachers.frozen_params(self.teachers)),
            build.make_optimizer(self.config),
            build.make_schedule(self.config),
            self.example_batch,
            rules=(*self.config.mesh.rules, *RULES),
        )

    @functools.cached_property
    def example_batch(self) -> Mapping[str, np.ndarray]:
        """The first training batch, for shapes."""
        _, batch = next(self.dataset.batches["train"].training_batches())
        return batch

    @property
    def shapes(self) -> PyTree:
        """Shapes of the parameters."""
        return self.trainer(self.config.seed).shapes.params

    def config_of_seed(self, seed: int) -> ConfigDict:
        """The config of one seed."""
        return configs.replace_fields(self.config, {"seed": seed})

    def folder(self, seed: int) -> pathlib.Path:
        """The folder of one seed."""
        return self.workdir / f"seed_{seed}"

    def predictions(self, state: TrainState, interrupt: Interrupt, split: str) -> np.ndarray:
        """Predictions for every sequence of a split.

        Raises:
          EvaluationStoppedError: they were interrupted.
        """
        batches = self.dataset.batches[split]
        rows = local_rows(batches.batch_size, self.mesh)
        numbered = interrupt.stoppable(batches.evaluation_batches(rows))
        step, size = self.predict_step(split), batches.num_examples
        return train_evaluate.predict(step, state.evaluation_params, numbered, size, self.mesh)

    def evaluate(
        self,
        seed: int,
        interrupt: Interrupt,
        state: TrainState,
        epoch: int,
        before: list[epochs.Epoch],
    ) -> dict[str, float]:
        """Dev scores after an epoch; one that may be chosen also writes predictions of all splits.

        Args:
          seed: Seed of the run.
          interrupt: Stops the evaluation after a batch.
          state: State after the epoch.
          epoch: Number of the epoch, from 1.
          before: Scores of the epochs before it.

        Raises:
          EvaluationStoppedError: it was interrupted; no predictions are written.
        """
        return results.score_epoch(
            self.dataset,
            self.config,
            functools.partial(self.predictions, state, interrupt),
            epoch=epoch,
            before=before,
            folder=self.folder(seed),
        )


def prepare(recipe: ConfigDict, *, init: str, data: str, workdir: str | pathlib.Path) -> Job:
    """Reads the pretrained run and the task's data and checks them against each other.

    Args:
      recipe: A config with a `task`, such as one of `configs/glue.py`.
      init: The pretrained model; see `run_cache.resolve`.
      data: Folder of the task's examples; see `tasks/NAME/dataset.py`.
      workdir: Folder for results.

    Raises:
      UserError: an input is missing, or does not match the others.
    """
    build.check(recipe)
    origin = run_cache.resolve(init)
    config = with_origin(recipe, origin)
    tokenizer = load_tokenizer(tokenizer_folder(origin))
    build.check_vocabulary(config, tokenizer, build.extra_ids(origin.config))
    dataset = read(config, data, tokenizer)
    config = with_derived_fields(config, dataset)
    sections = config.objectives if "objectives" in config else {}
    teachers = runs_teachers.find(sections, config.mesh.attention_kernel)
    for teacher in teachers.values():
        teacher.check(config, tokenizer, config.data.max_seq_length)
    more = runs_teachers.objectives(sections, build.tokenizer_fields(config, tokenizer), teachers)
    heads = {config.task.name: build.task(config.task), **more}
    pretrainer = Pretrainer(build.encoder(config.model), heads, packing.encode(config))
    job = Job(
        workdir=pathlib.Path(workdir),
        config=config,
        origin=origin,
        tokenizer=tokenizer,
        dataset=dataset,
        pretrainer=pretrainer,
        teachers=teachers,
        mesh=mesh_of(config, dataset),
    )
    for part in transferred_parts(job):
        checkpoint_origin.check(origin.checkpoint, job.shapes, part)
    return job


def transferred_parts(job: Job) -> list[str]:
    """Top-level parameter names loaded from the checkpoint: the encoder and shared objectives."""
    if job.origin.checkpoint is None:
        return []
    names = checkpoint_folder.read_record(job.origin.checkpoint).arrays
    before = {name.split("/")[1] for name in names if name.startswith("params/")}
    objectives = job.config.objectives if "objectives" in job.config else {}
    return ["encoder", *(name for name in job.shapes if name in before and name in objectives)]


def init_state(job: Job, trainer: Trainer) -> TrainState:
    """The initial state of a seed: new parameters, and the pretrained ones where there are any."""
    state = trainer.create_state()
    for part in transferred_parts(job):
        params = checkpoint_origin.load_params(job.origin.checkpoint, state.params, part)
        state = state.with_params(params)
    return state


def description(job: Job, num_seeds: int) -> str:
    """Sequences of each split, source of the parameters, new parameters, steps."""
    old = transferred_parts(job) or ["encoder"]
    new = [name for name in trees.flatten_names(job.shapes) if name.partition("/")[0] not in old]
    count = trees.num_parameters(job.shapes["encoder"])
    if job.origin.checkpoint is None:
        source = f"untrained weights, the architecture of {job.origin.run}"
    else:
        source = f"{job.origin.checkpoint}, sha256 {job.config.init.encoder[:16]}"
    frozen = ", frozen" if build.freezes_encoder(job.config) else ""
    shown = ", ".join(f"{split} {size:,}" for split, size in sizes(job.dataset).items())
    findings = "".join(f"{line}\n" for line in getattr(job.dataset, "findings", ()))
    return (
        f"{job.dataset.name}: {shown} sequences\n"
        f"{describe_left_out(job.dataset.left_out)}"
        f"{findings}"
        f"encoder: {count:,} parameters from {source}{frozen}\n"
        f"new: {', '.join(new) or 'none'}\n"
        f"{packing.describe_padding(job.config, job.dataset.batches['train'], job.mesh)}\n"
        f"{num_seeds} seed(s) of {job.config.num_train_steps:,} steps in "
        f"{job.config.num_train_epochs} epochs"
    )


def sizes(dataset: Dataset) -> dict[str, int]:
    """Number of sequences of each split."""
    return {split: batches.num_examples for split, batches in dataset.batches.items()}


def describe_left_out(left_out: Mapping[str, Sequence[str]]) -> str:
    """One line for each split with unusable examples: their number and the first names."""
    lines = []
    for split, names in left_out.items():
        if names:
            more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
            first = ", ".join(names[:_MAX_NAMES])
            lines.append(f"left out of {split}: {len(names):,}: {first}{more}\n")
    return "".join(lines)


def with_origin(recipe: ConfigDict, origin: checkpoint_origin.PretrainedSource) -> ConfigDict:
    """The recipe with all fields of the pretrained model; those that the recipe sets override them.

    The model must have the fields of `config.model`; those of `config.model_preferences` apply
    where it has them. None changes nothing.

    Raises:
      UserError: the model has no such field, or not enough positions.
    """
    config = configs.from_json(configs.to_json(recipe))
    model = configs.from_json(json.dumps(origin.config["model"]))
    known = build.model_fields(model)
    with config.unlocked(), model.unlocked():
        changes = {}
        if "model_preferences" in config:
            preferences = config.model_preferences.items()
            changes = {name: value for name, value in preferences if name in known}
            del config.model_preferences
        for name, value in {**changes, **recipe.model}.items():
            if value is None or model.get(name) == value:
                continue
            if name not in known:
                raise UserError(
                    f"config.model.{name}: got {value!r}, but the model of {origin.run} has no "
                    f"such field; set --config.model.{name}=none"
                )
            model[name] = value
        validation_config.check_model(model)
        config.model = model
        if "task" in config:
            validation_config.check_task_model(config)
        config.init = origin.description()
        if extra := build.extra_ids(origin.config):
            config.init.extra_ids = extra
    packing.check(config)
    max_length = build.positions(model)
    if config.data.max_seq_length > max_length:
        raise UserError(
            f"config.data.max_seq_length: got {config.data.max_seq_length}, expected at most "
            f"{max_length}, the positions of the model of {origin.run}; lower it"
        )
    return config


def read(config: ConfigDict, data: str, tokenizer: Tokenizer) -> Dataset:
    """Reads the examples of the config's task and encodes them for its model.

    Raises:
      UserError: an input is missing, or does not match the others.
    """
    fields = config.data
    spec = EncodingSpec(
        tokenizer=tokenizer,
        max_seq_length=fields.max_seq_length,
        cls_last=build.cls_last(config.model),
        max_chars_per_word=examples.max_chars_per_word(config.model),
        takes_positions=examples.reads_position_ids(config.model),
        batch_size=fields.batch_size,
        eval_batch_size=fields.eval_batch_size,
        padded_lengths=fields.padded_lengths,
        batches_per_group=fields.batches_per_group,
        packed_examples=packing.packed_examples(config),
        max_train_examples=config.max_train_examples,
        seed=config.seed,
    )
    data = str(copies.local_copy(data))
    return catalog.load("tasks", config.task.name, "dataset").Dataset(
        data, config.task, fields, spec
    )


def with_derived_fields(config: ConfigDict, dataset: Dataset) -> ConfigDict:
    """The config with the fields that follow from the data: classes, steps, warmup, fingerprint."""
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


def mesh_of(config: ConfigDict, dataset: Dataset) -> Mesh:
    """The mesh of a run, whose data axis divides its batch sizes and separates no packed examples.

    Raises:
      UserError: it does not.
    """
    mesh = build.make_mesh(config)
    check_batch_size(config.data.batch_size, mesh, config.data.microbatches)
    check_batch_size(config.data.eval_batch_size, mesh)
    batch_size, together = dataset.batches["train"].batch_size, packing.packed_examples(config) or 1
    check_batch_size(batch_size, mesh, config.data.microbatches, together)
    return mesh
