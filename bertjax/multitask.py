"""Fine-tuning one encoder on several tasks at once, a head for each (MT-DNN, Liu et al. 2019).

It is fine-tuning like any other (`finetuning.py`): what differs is whose batch a step gets, and
that every task is scored.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertjax import build, catalog, finetuning, scoring
from bertjax.data import glue, tokenizer
from bertjax.data.glue_table import GlueTask, glue_task
from bertjax.data.task_mixture import TaskMixture
from bertjax.errors import UserError
from bertjax.interfaces import Pretrainer
from bertjax.train import epochs, predict, transfer
from bertjax.train.state import TrainState

BETWEEN = "+"
"""Stands between the names of tasks in `config.task.dataset`."""


@dataclasses.dataclass(frozen=True)
class Job(finetuning.Job):
    """What all seeds share; `examples` and `batches` are named TASK/SPLIT, and `batches["train"]`
    is the mixture.

    Attributes:
      tasks: The rows of GLUE's table.
      heads: Makes each task's head, by its name.
    """

    tasks: tuple[GlueTask, ...] = ()
    heads: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def predict_steps(self) -> dict[str, predict.PredictStep]:
        """Compiled once for all seeds, for each task."""
        return {
            name: predict.make_predict_step(
                Pretrainer(build.encoder(self.config.model), {name: head}), self.mesh
            )
            for name, head in self.heads.items()
        }

    def evaluate(
        self, seed: int, state: TrainState, epoch: int, before: list[epochs.Epoch]
    ) -> dict[str, float]:
        """Scores of every task, and their mean."""
        values = {}
        for task in self.tasks:
            found = self._evaluate_one(task, seed, state, epoch, before)
            values |= {f"{task.name}/{name}": value for name, value in found.items()}
        scores = [values[f"{task.name}/{scoring.SCORE}"] for task in self.tasks]
        return values | {scoring.SCORE: float(np.mean(scores))}

    def _evaluate_one(
        self,
        task: GlueTask,
        seed: int,
        state: TrainState,
        epoch: int,
        before: Sequence[epochs.Epoch],
    ) -> dict[str, float]:
        own = f"{task.name}/"
        examples = {
            name.removeprefix(own): split
            for name, split in self.examples.items()
            if name.startswith(own)
        }

        step = self.predict_steps[task.name]
        return scoring.score_epoch(
            task,
            _alone(self.config, task.name),
            examples,
            lambda name: self.predictions(step, state, own + name),
            epoch=epoch,
            before=before,
            folder=self.folder(seed),
        )


def prepare(recipe: ConfigDict, *, init: str, data: str, workdir: str) -> Job:
    """Reads everything, and checks it before the first step; see `finetuning.prepare`.

    Raises:
      UserError: something is missing or does not fit.
    """
    _check(recipe)
    tasks = tuple(glue_task(name) for name in recipe.task.dataset.split(BETWEEN))
    origin = transfer.find(init)
    config = finetuning.with_origin(recipe, origin)
    pieces = tokenizer.load(finetuning.tokenizer_folder(origin))
    build.check_vocabulary(config, pieces, build.extra_ids(origin.config))
    examples, batches = {}, {}
    for task in tasks:
        for name, split in glue.read(data, task).items():
            examples[f"{task.name}/{name}"] = split
            made = finetuning.batches_of(config, name, split, pieces, None)
            batches[f"{task.name}/{name}"] = made
    mixture = TaskMixture(tuple(batches[f"{task.name}/train"] for task in tasks), config.seed)
    config = finetuning.with_numbers(config, batches, mixture.batches_per_epoch)
    heads = {task.name: _head(config, task, number) for number, task in enumerate(tasks)}
    job = Job(
        workdir=pathlib.Path(workdir),
        config=config,
        origin=origin,
        tokenizer=pieces,
        task=dataclasses.replace(tasks[0], name=recipe.task.dataset),
        examples=examples,
        batches={**batches, "train": mixture},
        pretrainer=Pretrainer(build.encoder(config.model), heads),
        teachers={},
        mesh=finetuning.mesh_of(config),
        tasks=tasks,
        heads=heads,
    )
    for part in finetuning.taken_over(job):
        transfer.check(origin.checkpoint, job.shapes, part)
    return job


def _head(config: ConfigDict, task: GlueTask, number: int) -> Callable[[], Any]:
    fields = {name: value for name, value in config.task.items() if name != "name"}
    fields |= {"dataset": task.name, "task_id": number}
    return build.construct(catalog.load("tasks", config.task.name).Task, fields, "config.task")


def _alone(config: ConfigDict, name: str) -> ConfigDict:
    """The config of one of the tasks."""
    own = config.copy_and_resolve_references()
    with own.unlocked():
        own.task.dataset = name
    return own


def _check(recipe: ConfigDict) -> None:
    names = recipe.task.dataset.split(BETWEEN)
    if len(set(names)) < len(names):
        raise UserError(f"config.task.dataset={recipe.task.dataset}: a task stands there twice")
    unknown = {"choose_epoch": recipe.choose_epoch != "last", "objectives": "objectives" in recipe}
    unknown["data.knowledge"] = bool(recipe.data.knowledge)
    for field, asked in unknown.items():
        if asked:
            raise UserError(
                f"config.{field} does not go with several tasks, {recipe.task.dataset}: leave it "
                "as it is in configs/glue.py"
            )
