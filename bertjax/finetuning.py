"""Fine-tuning: from a pretraining run and a task to the scores of several seeds.

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

from bertjax import build, catalog, model_input, scoring, teaching
from bertjax import config as configs
from bertjax.data import glue, knowledge, pairs, tokenizer
from bertjax.data.glue_table import GlueExamples, GlueTask, glue_task
from bertjax.data.pair_batches import PairBatches
from bertjax.errors import UserError
from bertjax.interfaces import Pretrainer, Tokenizer
from bertjax.layers.precision import NAMED
from bertjax.train import checkpoint_folder, epochs, named_arrays, predict, transfer
from bertjax.train.checkpoint import Checkpoints
from bertjax.train.display import Display
from bertjax.train.feed import Feed
from bertjax.train.files import make_folder
from bertjax.train.hooks import SaveCheckpoints, StopWhenNotFinite
from bertjax.train.interrupt import Interrupt
from bertjax.train.loop import train
from bertjax.train.metric_writer import MetricsFile, TensorBoard
from bertjax.train.peak import peak_flops_per_second
from bertjax.train.report import Report
from bertjax.train.retention import Keep
from bertjax.train.seeds import for_seeds
from bertjax.train.sharding import RULES, local_rows
from bertjax.train.state import TrainState
from bertjax.train.trainer import Trainer

FREE_FIELDS = ("log_every", "keep_checkpoints", "mesh", "mesh.*", "objectives.*.teacher")
"""What may change between two starts of a job: none of it changes what is learned."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What all seeds share.

    Attributes:
      workdir: Where everything goes.
      config: The recipe, completed by the pretrained model and by what the data says.
      origin: Where the encoder comes from.
      tokenizer: A copy of it lies in the workdir.
      task: The row of GLUE's table.
      examples: The splits that are there, by name.
      batches: The same, encoded.
      pretrainer: The encoder with the task, and with further objectives if the recipe has any.
      teachers: Whom these learn from, by their names.
      mesh: The devices.
    """

    workdir: pathlib.Path
    config: ConfigDict
    origin: transfer.Origin
    tokenizer: Tokenizer
    task: GlueTask
    examples: Mapping[str, GlueExamples]
    batches: Mapping[str, PairBatches]
    pretrainer: Pretrainer
    teachers: teaching.Teachers
    mesh: Mesh

    @functools.cached_property
    def predict_step(self) -> predict.PredictStep:
        """Compiled once for all seeds."""
        return predict.make_predict_step(self.pretrainer, self.mesh)

    @functools.cached_property
    def trainer(self) -> Callable[[int], Trainer]:
        """What is compiled, for a seed; compiled once for all of them."""
        _, batch = next(self.batches["train"].training_batches())
        parts = self.config, self.pretrainer, self.mesh, batch
        return for_seeds(
            build.trainer(*parts, frozen=teaching.frozen(self.teachers)),
            build.make_optimizer(self.config),
            build.make_schedule(self.config),
            batch,
            rules=(*self.config.mesh.rules, *RULES),
            microbatches=self.config.data.microbatches,
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

    def predictions(self, step: predict.PredictStep, state: TrainState, name: str) -> np.ndarray:
        """Those of every example of a split, by the compiled `step`."""
        batches = self.batches[name]
        numbered = batches.evaluation_batches(local_rows(batches.batch_size, self.mesh))
        size = len(self.examples[name])
        return predict.predict(step, state.params, numbered, size, self.mesh)

    def evaluate(
        self, seed: int, state: TrainState, epoch: int, before: list[epochs.Epoch]
    ) -> dict[str, float]:
        """Scores of the dev splits; for an epoch that may be chosen, predictions of all splits."""
        return scoring.score_epoch(
            self.task,
            self.config,
            self.examples,
            functools.partial(self.predictions, self.predict_step, state),
            epoch=epoch,
            before=before,
            folder=self.folder(seed),
        )


def prepare(recipe: ConfigDict, *, init: str, data: str, workdir: str) -> Job:
    """Reads everything, and checks it before the first step.

    Args:
      recipe: As `configs/glue.py` makes it.
      init: See `transfer.find`.
      data: See `glue.read`.
      workdir: Where results go.

    Raises:
      UserError: something is missing or does not fit.
    """
    epochs.check_rule(recipe.choose_epoch)
    task = glue_task(recipe.task.dataset)
    origin = transfer.find(init)
    config = with_origin(recipe, origin)
    pieces = tokenizer.load(tokenizer_folder(origin))
    build.check_vocabulary(config, pieces, build.extra_ids(origin.config))
    examples = glue.read(data, task)
    graph = _graph(config, data)
    batches = {
        name: batches_of(config, name, split, pieces, graph) for name, split in examples.items()
    }
    config = with_numbers(config, batches, batches["train"].batches_per_epoch)
    fields = {name: value for name, value in config.task.items() if name != "name"}
    make_task = build.construct(catalog.load("tasks", config.task.name).Task, fields, "config.task")
    sections = config.objectives if "objectives" in config else {}
    teachers = teaching.find(sections)
    for teacher in teachers.values():
        teacher.check(config, pieces, config.data.max_seq_length)
    more = teaching.objectives(sections, build.facts(config, pieces), teachers)
    pretrainer = Pretrainer(build.encoder(config.model), {config.task.name: make_task, **more})
    job = Job(
        workdir=pathlib.Path(workdir),
        config=config,
        origin=origin,
        tokenizer=pieces,
        task=task,
        examples=examples,
        batches=batches,
        pretrainer=pretrainer,
        teachers=teachers,
        mesh=mesh_of(config),
    )
    for part in taken_over(job):
        transfer.check(origin.checkpoint, job.shapes, part)
    return job


def taken_over(job: Job) -> list[str]:
    """What goes on as it was: the encoder, and objectives that the run before had as well."""
    if job.origin.checkpoint is None:
        return []
    names = checkpoint_folder.read_record(job.origin.checkpoint).arrays
    before = {name.split("/")[1] for name in names if name.startswith("params/")}
    objectives = job.config.objectives if "objectives" in job.config else {}
    return ["encoder", *(name for name in job.shapes if name in before and name in objectives)]


def fine_tune(job: Job, seed: int, interrupt: Interrupt) -> scoring.Result | None:
    """Trains a seed to the end and scores it; None where it was interrupted.

    A seed that was interrupted goes on from its newest checkpoint.
    """
    make_folder(job.folder(seed))
    if jax.process_index() == 0 and not (job.workdir / "tokenizer").exists():
        job.tokenizer.save(str(job.workdir / "tokenizer"))
    config, trainer = job.seeded(seed), job.trainer(seed)
    batches = dataclasses.replace(job.batches["train"], seed=seed)
    keep = Keep(latest=1, best=int(config.choose_epoch == "best"), metric=scoring.SCORE, mode="max")
    provenance = {
        "config": configs.fingerprint(config, ignoring=FREE_FIELDS),
        **teaching.provenance(job.teachers),
    }
    evaluation = epochs.EvaluateEpochs(
        batches.batches_per_epoch, functools.partial(job.evaluate, seed)
    )
    checkpoints = Checkpoints(job.folder(seed), keep=keep, provenance=provenance)
    with contextlib.closing(checkpoints):
        state, remembered = begin(job, trainer, checkpoints)
        evaluation.restore(remembered.get(evaluation.name, {}))
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
                    StopWhenNotFinite(config.max_skipped_in_a_row),
                    SaveCheckpoints(batches.batches_per_epoch, checkpoints),
                ],
                num_train_steps=config.num_train_steps,
                interrupt=interrupt,
                remembered=remembered,
            )
    if interrupt.stopped:
        return None
    return scoring.finish(job.folder(seed), config, evaluation.epochs)


def begin(
    job: Job, trainer: Trainer, checkpoints: Checkpoints
) -> tuple[TrainState, Mapping[str, Any]]:
    """The state to go on from, and what the hooks remember of the way there."""
    resumed = checkpoints.resume(trainer.shapes)
    if resumed is not None:
        state, record = resumed
        return state, record.hooks
    state = trainer.create_state()
    for part in taken_over(job):
        params = transfer.take_over(job.origin.checkpoint, state.params, part)
        state = state.replace(params=params)
    return state, {}


def _flops(job: Job, trainer: Trainer) -> Callable[[tuple[int, ...]], float]:
    _, rows = next(job.batches["train"].training_batches())
    return functools.cache(lambda shape: trainer.flops(rows, shape))


def with_origin(recipe: ConfigDict, origin: transfer.Origin) -> ConfigDict:
    """The recipe with the whole pretrained model in place of the few fields that it sets.

    Raises:
      UserError: the model has no such field, or not enough positions.
    """
    config = configs.from_json(configs.to_json(recipe))
    model = configs.from_json(json.dumps(origin.config["model"]))
    known = build.model_fields(model)
    with config.unlocked(), model.unlocked():
        for name, value in recipe.model.items():
            if value is None:
                continue
            if name not in known:
                raise UserError(
                    f"the model of {origin.run} has no field {name}: set --config.model.{name}=none"
                )
            model[name] = value
        config.model = model
        config.init = origin.description()
        if extra := build.extra_ids(origin.config):
            config.init.extra_ids = extra
    longest = build.positions(model)
    if config.data.max_seq_length > longest:
        raise UserError(
            f"config.data.max_seq_length={config.data.max_seq_length} exceeds "
            f"max_position_embeddings={model.max_position_embeddings} of {origin.run}, which holds "
            f"{longest} tokens: lower it"
        )
    return config


def tokenizer_folder(origin: transfer.Origin) -> pathlib.Path:
    """The run's own copy of its tokenizer, or the one that its config names.

    Raises:
      UserError: it is in neither place.
    """
    own = origin.run / "tokenizer"
    if "task" in origin.config or own.exists():
        return own
    corpus, path = origin.config["data"]["corpus"], origin.config["tokenizer"]["path"]
    places = [path and pathlib.Path(path), corpus and pathlib.Path(corpus) / "tokenizer"]
    found = next((place for place in places if place and place.exists()), None)
    if found is None:
        raise UserError(
            f"the tokenizer of {origin.run} is neither in {own} nor at "
            f"config.tokenizer.path={path!r}: copy it to {own}"
        )
    return found


def _graph(config: ConfigDict, data: str) -> knowledge.Graph | None:
    """The graph whose triples are put into the texts; a relative path begins at the data.

    Raises:
      UserError: there is none there, or the model cannot read what is made with it.
    """
    if not config.data.knowledge:
        return None
    if "max_position_embeddings" not in config.model:
        raise UserError(
            f"config.data.knowledge needs a model that is given positions, {config.model.name} is "
            "not: set --config.data.knowledge=''"
        )
    return knowledge.read(pathlib.Path(data) / config.data.knowledge)


def batches_of(
    config: ConfigDict,
    name: str,
    examples: GlueExamples,
    pieces: Any,
    graph: knowledge.Graph | None,
) -> PairBatches:
    """The batches of a split, of training or of evaluation."""
    data, is_train = config.data, name == "train"
    if is_train and config.max_train_examples:
        examples = examples.sample(config.max_train_examples, config.seed)
    shorter = [length for length in data.padded_lengths if length < data.max_seq_length]
    return PairBatches(
        pairs=_encoded(config, examples, pieces, graph),
        labels=examples.labels,
        batch_size=data.batch_size if is_train else data.eval_batch_size,
        padded_lengths=(*shorter, data.max_seq_length),
        batches_per_group=data.batches_per_group,
        seed=config.seed,
    )


def _encoded(
    config: ConfigDict, examples: GlueExamples, pieces: Any, graph: knowledge.Graph | None
) -> pairs.Pairs:
    data = config.data
    if graph is None:
        return pairs.encode(
            examples.texts,
            pieces,
            data.max_seq_length,
            cls_last=build.cls_last(config.model),
            max_chars_per_word=model_input.max_chars_per_word(config.model),
        )
    each = data.triples_per_entity
    return knowledge.encode(
        examples.texts, pieces, graph, data.max_seq_length, triples_per_entity=each
    )


def with_numbers(
    config: ConfigDict, batches: Mapping[str, PairBatches], batches_per_epoch: int
) -> ConfigDict:
    """The config with what follows from the data: steps, warmup, a fingerprint of the examples."""
    steps = config.num_train_epochs * batches_per_epoch
    if steps < 1:
        raise UserError(f"config.num_train_epochs={config.num_train_epochs}: wanted 1 or more")
    with config.unlocked():
        config.num_train_steps = steps
        config.optimizer.warmup_steps = round(config.optimizer.warmup_share * steps)
        contents = {name: split.contents() for name, split in batches.items()}
        config.data.fingerprint = named_arrays.fingerprint(contents)
    return config


def mesh_of(config: ConfigDict) -> Mesh:
    """The devices of a run, over which its batches divide."""
    evaluated = config.data.eval_batch_size * config.data.microbatches
    return build.make_mesh(config, (config.data.batch_size, evaluated))
