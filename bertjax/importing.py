"""From a folder of Hugging Face to a run that everything else reads as if it was trained here.

read    folder -> Import: their arrays as our parameters, with a config and a tokenizer
write   Import -> run folder: config.json, tokenizer/, checkpoints/0
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertjax import build, catalog
from bertjax import config as configs
from bertjax.compat import huggingface, name_map
from bertjax.compat.huggingface import CLASSIFIER, ENCODER, POOLER, Released
from bertjax.data import tokenizer
from bertjax.data.glue_table import glue_task
from bertjax.errors import UserError
from bertjax.interfaces import Pretrainer, Tokenizer
from bertjax.train import named_arrays
from bertjax.train.checkpoint import Checkpoints
from bertjax.train.files import make_folder, write_text
from bertjax.train.state import unboxed

NO_TASK = "none"
"""Leaves a classifier behind."""

_TRAINED_WITH = {"precision": "auto", "remat": "none", "unroll": 0}
"""Fields of our models that say how to compute, not what; as in `configs/common.py`."""


@dataclasses.dataclass(frozen=True)
class Import:
    """A model of theirs as a run of ours.

    Attributes:
      config: Of the run.
      tokenizer: Of the model.
      params: By name.
      fresh: Parameters that our model has and the folder has not.
      left_behind: Parts of the folder that were not taken over.
    """

    config: ConfigDict
    tokenizer: Tokenizer
    params: Mapping[str, np.ndarray]
    fresh: tuple[str, ...]
    left_behind: tuple[str, ...]


def read(source: pathlib.Path, *, task: str = "", vocabulary: str = "") -> Import:
    """Reads a model, whole or not at all.

    Args:
      source: What `save_pretrained` wrote.
      task: The task of GLUE whose classifier the model has; empty: as its config says; `NO_TASK`
        leaves it behind.
      vocabulary: Where the tokenizer lies; empty: with the model.

    Raises:
      UserError: something is missing, or does not fit.
    """
    released, left_behind = _without_superfluous(huggingface.read(source), task)
    pieces = tokenizer.load(vocabulary or source)
    config = _config(source, released, task)
    if config.model.vocab_size != pieces.vocab_size:
        raise UserError(
            f"{source}: the model has vocab_size={config.model.vocab_size}, its tokenizer "
            f"{pieces.vocab_size} pieces: name the right one with --tokenizer, or make them equal "
            "with resize_token_embeddings of transformers"
        )
    pairs = huggingface.pairs_of(released.architecture, released.parts)
    initialize, shapes = _initialization(config, pieces)
    params = name_map.to_ours(pairs, released.arrays, shapes, str(source))
    fresh = tuple(name for name in shapes if name not in params)
    params |= initialize(fresh)
    params = {name: np.asarray(params[name], np.float32) for name in shapes}
    with config.unlocked():
        config.imported.fresh = fresh
        config.imported.parameters = named_arrays.fingerprint(named_arrays.nested(params))
    return Import(config, pieces, params, fresh, left_behind)


def write(made: Import, target: pathlib.Path) -> None:
    """Writes the run's folder, whole or not at all.

    Raises:
      UserError: there is something already.
    """
    with new_folder(target) as folder:
        write_text(folder / "config.json", configs.to_json(made.config) + "\n")
        made.tokenizer.save(str(folder / "tokenizer"))
        state = {"params": named_arrays.nested(made.params)}
        provenance = {"tokenizer": made.tokenizer.fingerprint}
        with Checkpoints(folder, provenance=provenance) as checkpoints:
            checkpoints.save(jax.tree.map(jnp.asarray, state), step=0)


@contextlib.contextmanager
def new_folder(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder to write into, which becomes the target when all went well.

    Raises:
      UserError: the target holds something already.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not empty: name a new folder, or remove it first")
    make_folder(target.absolute().parent)
    unfinished = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex}")
    try:
        make_folder(unfinished)
        yield unfinished
        unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _without_superfluous(released: Released, task: str) -> tuple[Released, tuple[str, ...]]:
    """Leaves out what has no use beside a classifier, or the classifier itself."""
    unwanted = _superfluous(released, task)
    for part in unwanted:
        released = released.without(part)
    return released, unwanted


def _superfluous(released: Released, task: str) -> tuple[str, ...]:
    if CLASSIFIER not in released.parts:
        return ()
    if task == NO_TASK:
        return (CLASSIFIER,)
    others = [part for part in released.parts if part not in (ENCODER, POOLER, CLASSIFIER)]
    pairs = released.architecture.parts()
    has_its_own = {pair.ours for pair in pairs[CLASSIFIER]}
    if POOLER in released.parts and any(pair.ours in has_its_own for pair in pairs[POOLER]):
        others.append(POOLER)
    return tuple(others)


def _config(source: pathlib.Path, released: Released, task: str) -> ConfigDict:
    """What `config.json` of the run says: the model, its heads, and where it is from."""
    sections: dict[str, Any] = {
        "seed": 0,
        "num_train_steps": 0,
        "best_metric": "held_out/mlm/loss",
        "best_mode": "min",
        "model": released.architecture.fields(released.config) | _TRAINED_WITH,
        "tokenizer": {"path": ""},
        "data": {"corpus": ""},
        "imported": {
            "name": source.resolve().name,
            "model_type": released.model_type,
            "dtype": released.dtype,
        },
    }
    heads = [part for part in released.parts if part not in (ENCODER, POOLER)]
    if CLASSIFIER in heads:
        sections["task"] = _task(released, task)
    else:
        sections["objectives"] = {head: {} for head in heads}
    return configs.from_json(json.dumps(sections))


def _task(released: Released, name: str) -> dict[str, Any]:
    """The section of the task that a classifier was trained for."""
    theirs = released.config
    name = name or theirs.get("finetuning_task") or ""
    if not name:
        raise UserError(
            "the model has a classifier, and its config.json does not say of which task: name it, "
            f"as in --task rte, or leave it behind with --task {NO_TASK}"
        )
    dataset = glue_task(name)
    said = [label for _, label in sorted(theirs.get("id2label", {}).items(), key=_number)]
    if said != list(dataset.labels) and sorted(said) == sorted(dataset.labels):
        raise UserError(
            f"config.json has the classes of {name} as {', '.join(said)}; bertjax has them as "
            f"{', '.join(dataset.labels)}: reorder its classifier, or leave it behind with --task "
            f"{NO_TASK}"
        )
    dropout = theirs.get(released.architecture.CLASSIFIER_DROPOUT)
    fields = released.architecture.fields(theirs)
    dropout = fields["hidden_dropout_prob"] if dropout is None else dropout
    return {"name": CLASSIFIER, "dataset": name, "classifier_dropout": dropout}


def _number(item: tuple[str, str]) -> int:
    return int(item[0])


def _initialization(config: ConfigDict, pieces: Tokenizer):
    """The shapes of all parameters, and what makes those that are named."""
    if "task" in config:
        fields = {name: value for name, value in config.task.items() if name != "name"}
        module = catalog.load("tasks", config.task.name).Task
        heads = {config.task.name: build.construct(module, fields, "config.task")}
    else:
        heads = build.objectives(config.objectives, build.facts(config, pieces))
    pretrainer = Pretrainer(build.encoder(config.model), heads)

    def initial() -> dict[str, jax.Array]:
        variables = pretrainer.init(jax.random.key(config.seed), _batch(), train=False)
        return named_arrays.named(unboxed(variables["params"]))

    def initialize(names: tuple[str, ...]) -> dict[str, np.ndarray]:
        made = jax.jit(lambda: {name: initial()[name] for name in names})()
        return {name: np.asarray(array) for name, array in made.items()}

    shapes = {name: leaf.shape for name, leaf in jax.eval_shape(initial).items()}
    return initialize, shapes


def _batch() -> dict[str, jax.Array]:
    """A batch of all that a head may ask for; nothing of it is looked at."""
    tokens, rows = jnp.zeros((1, 2), jnp.int32), jnp.zeros(1, jnp.int32)
    return {
        "input_ids": tokens,
        "segment_ids": tokens,
        "attention_mask": jnp.ones(tokens.shape, bool),
        "example_id": rows.astype(jnp.uint32),
        "example_key": jax.random.split(jax.random.key(0), 1),
        "pair_label": rows,
        "labels": rows,
    }
