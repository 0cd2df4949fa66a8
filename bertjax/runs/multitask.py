"""Multi-task fine-tuning: one encoder, a head for each task (MT-DNN, Liu et al. 2019).

The loop is that of `runs/finetune.py`; each step uses a batch of one task, and every task is
scored.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertjax import build
from bertjax.config import replace_fields
from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.interfaces import Dataset
from bertjax.pretrained import tokenizer_folder
from bertjax.pretrainer import Pretrainer
from bertjax.runs import finetune_job, packing, results
from bertjax.tasks.batches import TaskMixture
from bertjax.tasks.glue.head import BETWEEN
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train import evaluate
from bertjax.train.checkpoint import origin as checkpoint_origin


def is_multitask(recipe: ConfigDict) -> bool:
    """Whether a recipe names several tasks."""
    return "dataset" in recipe.task and BETWEEN in recipe.task.dataset


class Tasks:
    """The datasets of several tasks as one `interfaces.Dataset`; splits are named TASK/SPLIT."""

    task_fields = MappingProxyType({})

    def __init__(self, name: str, parts: Mapping[str, Dataset], seed: int):
        """Combines datasets.

        Args:
          name: Name of the combination, such as "cola+sst2".
          parts: The datasets by task.
          seed: Seed of the order of tasks.
        """
        self.name, self.parts = name, parts
        mixture = TaskMixture(tuple(part.batches["train"] for part in parts.values()), seed)
        self.batches = {"train": mixture} | {
            f"{task}/{split}": batches
            for task, part in parts.items()
            for split, batches in part.batches.items()
        }
        self.dev = tuple(f"{task}/{split}" for task, part in parts.items() for split in part.dev)
        self.test = tuple(f"{task}/{split}" for task, part in parts.items() for split in part.test)
        self.left_out = {
            f"{task}/{split}": names
            for task, part in parts.items()
            for split, names in part.left_out.items()
        }

    def score(self, split: str, predictions: np.ndarray) -> dict[str, float]:
        """Metrics of a split TASK/SPLIT, as fractions."""
        task, _, own = split.partition("/")
        return self.parts[task].score(own, predictions)

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """The score of every task, and their mean."""
        found = {}
        for task, part in self.parts.items():
            own = {
                name.removeprefix(f"{task}/"): value
                for name, value in values.items()
                if name.startswith(f"{task}/")
            }
            found |= {f"{task}/{name}": value for name, value in part.headline(own).items()}
        return found | {results.SCORE: float(np.mean(list(found.values())))}

    def write(self, split: str, predictions: np.ndarray, folder: pathlib.Path) -> None:
        """Writes the prediction files of a split TASK/SPLIT."""
        task, _, own = split.partition("/")
        self.parts[task].write(own, predictions, folder)


@dataclasses.dataclass(frozen=True)
class Job(finetune_job.Job):
    """A multi-task run; see `finetune_job.Job`.

    Attributes:
      heads: Functions that make the heads, by task.
    """

    heads: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def predict_step(self) -> Callable[[str], evaluate.PredictStep]:
        """The compiled prediction step of a split, with the head of its task."""
        steps = {
            task: evaluate.make_predict_step(
                Pretrainer(build.encoder(self.config.model), {task: head}), self.mesh
            )
            for task, head in self.heads.items()
        }
        return lambda split: steps[split.partition("/")[0]]


def prepare(recipe: ConfigDict, *, init: str, data: str, workdir: str | pathlib.Path) -> Job:
    """Like `finetune_job.prepare`, for several tasks.

    Raises:
      UserError: an input is missing, or does not match the others.
    """
    build.check(recipe)
    _check(recipe)
    names = recipe.task.dataset.split(BETWEEN)
    origin = run_cache.resolve(init)
    config = finetune_job.with_origin(recipe, origin)
    tokenizer = load_tokenizer(tokenizer_folder(origin))
    build.check_vocabulary(config, tokenizer, build.extra_ids(origin.config))
    parts = {name: finetune_job.read(single_task(config, name), data, tokenizer) for name in names}
    dataset = Tasks(recipe.task.dataset, parts, config.seed)
    config = finetune_job.with_derived_fields(config, dataset)
    heads = {
        name: build.task(config.task, dataset=name, task_id=number)
        for number, name in enumerate(names)
    }
    job = Job(
        workdir=pathlib.Path(workdir),
        config=config,
        origin=origin,
        tokenizer=tokenizer,
        dataset=dataset,
        pretrainer=Pretrainer(build.encoder(config.model), heads, packing.encode(config)),
        teachers={},
        mesh=finetune_job.mesh_of(config, dataset),
        heads=heads,
    )
    for part in finetune_job.transferred_parts(job):
        checkpoint_origin.check(origin.checkpoint, job.shapes, part)
    return job


def single_task(config: ConfigDict, name: str) -> ConfigDict:
    """The config for one of the tasks."""
    return replace_fields(config, {"task.dataset": name})


def _check(recipe: ConfigDict) -> None:
    names = recipe.task.dataset.split(BETWEEN)
    if len(set(names)) < len(names):
        raise UserError(
            f"config.task.dataset={recipe.task.dataset}: expected distinct tasks; remove duplicates"
        )
    unsupported = {
        "choose_epoch": recipe.choose_epoch != "last",
        "objectives": "objectives" in recipe,
    }
    unsupported["data.knowledge"] = bool(recipe.data.knowledge)
    for field, is_set in unsupported.items():
        if is_set:
            raise UserError(
                f"config.{field} is not supported for several tasks ({recipe.task.dataset}): leave "
                "it as in configs/glue.py"
            )
