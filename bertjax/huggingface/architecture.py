"""Load an architecture of Hugging Face, and query its heads, the parts of its parameters, its maps.

An architecture is a file of `huggingface/architectures/`, whose `__init__.py` describes the
attributes.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

from bertjax import catalog
from bertjax.constraints import fields_of
from bertjax.errors import UserError
from bertjax.huggingface.name_map import ArrayMap

_FOLDER = "huggingface/architectures"

ENCODER, POOLER = "encoder", "encoder/pooler"
"""Parts: the one of every architecture, and the one that only some objectives train."""

_DEFAULTS = {
    "TIED_ARRAYS": {},
    "CLASSIFIER_DROPOUT": {},
    "CLASSIFIER_ACT": "tanh",
    "TOKEN_TRANSFORM": False,
    "HEAD_ACT": {},
    "ACT_FIELD": "hidden_act",
    "HAS_SEGMENTS": None,
    "NOT_EXPORTED": {},
    "MERGED_FIELDS": {},
    "REMOTE_CODE": False,
    "SPECIALS": (),
    "EXTRA_EMBEDDING_ROWS": False,
    "BUFFERS": (),
    "fields_of_code": lambda code: {},
    "constants": lambda hf_config: {},
}
"""The attributes that an architecture may leave out."""


def names() -> list[str]:
    """The `model_type` of every architecture."""
    return catalog.names(_FOLDER)


def load(model_type: str) -> ModuleType:
    """Imports the architecture of a `model_type`.

    Raises:
      UserError: there is no such architecture; the message suggests the nearest name.
    """
    return catalog.load(_FOLDER, model_type)


def attribute(architecture: ModuleType, name: str) -> Any:
    """An attribute that the architecture may leave out."""
    return getattr(architecture, name, _DEFAULTS[name])


def prefix(architecture: ModuleType) -> str:
    """What the encoder's array names begin with in a model with heads: PREFIX and a dot."""
    return f"{architecture.PREFIX}." if architecture.PREFIX else ""


def with_model_defaults(run: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a run with all fields of its model, also those left at their default."""
    module = catalog.load("models", run["model"]["name"]).Model
    declared = fields_of(module)
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(module)
        if field.name in declared and field.default is not dataclasses.MISSING
    }
    return {**run, "model": defaults | dict(run["model"])}


def model_type_of(run: Mapping[str, Any]) -> str:
    """The `model_type` of the architecture that the config of a run describes.

    Raises:
      UserError: no architecture has this model with these hyperparameters.
    """
    if "imported" in run:
        return run["imported"]["model_type"]
    run = with_model_defaults(run)
    for name in names():
        if load(name).describes(run):
            return name
    raise UserError(
        f"config.model: got name={run['model']['name']!r} with hyperparameters that none of the "
        f"exported architectures of transformers supports ({', '.join(names())}); the run cannot "
        "be exported"
    )


def head_class(head: str) -> type:
    """The class of a head: an objective, or a task."""
    if is_task(head):
        return catalog.load("tasks", head, "head").Task
    return catalog.load("objectives", head).Objective


def exchanged_task(task: str) -> str:
    """The task whose array maps a head uses: the task itself, or another one with the same head."""
    return head_class(task).exchanged_as or task


def with_exchanged_task(run: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a fine-tuned run with its task renamed as by `exchanged_task`."""
    own = run["task"]["name"]
    name = exchanged_task(own)
    objectives = {
        key: {**fields, "of": name} if fields.get("of") == own else fields
        for key, fields in run.get("objectives", {}).items()
    }
    return {**run, "task": {**run["task"], "name": name}, "objectives": objectives}


def rename_task(params: Mapping[str, Any], task: str, name: str) -> dict[str, Any]:
    """The parameters with the subtree of a task under another name."""
    return {re.sub(f"^{task}/", f"{name}/", path): value for path, value in params.items()}


def is_task(head: str) -> bool:
    """Whether a head is that of a task."""
    return head in catalog.names("tasks", "head")


def reads_pooled(head: str) -> bool:
    """Whether a head reads one vector per sequence, and therefore trains the pooler."""
    return head_class(head).reads_pooled


def task_of(heads: Iterable[str]) -> str | None:
    """The task among some heads; there is at most one."""
    return next((head for head in heads if is_task(head)), None)


def is_head(part: str) -> bool:
    """Whether a part belongs to a head, not to the encoder."""
    return part.partition("/")[0] != ENCODER


def own_pooler(task: str) -> str:
    """The part that a task adds to an encoder without a pooler."""
    return f"{task}/pooler"


def has_own_pooler(architecture: ModuleType, task: str) -> bool:
    """Whether the head of a task in transformers has a pooler, which is not the encoder's."""
    paths = [path for each in architecture.parts()[task] for path in each.paths]
    return any_under(own_pooler(task), paths)


def heads_without_arrays(architecture: ModuleType) -> set[str]:
    """The heads that have no arrays, as their weight is the embedding table."""
    return {part for part, maps in architecture.parts().items() if not maps}


def heads_of_a_class(architecture: ModuleType, heads: Collection[str]) -> tuple[str, ...]:
    """The largest set of these heads for which transformers has a class, preferably with a task."""
    fitting = [each for each in architecture.CLASSES if set(each) <= set(heads)]
    return max(fitting, key=lambda each: (task_of(each) is not None, len(each)))


def generates(run: Mapping[str, Any]) -> bool:
    """Whether an objective of a run trains a model that continues prompts."""
    heads = run.get("objectives", ())
    return any(head_class(head).generates for head in heads)


def pipeline_tag(heads: Iterable[str]) -> str:
    """The task of a model with these heads, as the Hugging Face hub names it; empty for none."""
    tags = [head_class(head).pipeline_tag for head in heads]
    return next(filter(None, tags), "")


def parts_of(architecture: ModuleType, paths: Iterable[str]) -> list[str]:
    """The parts that parameters belong to."""
    paths = list(paths)
    return [part for part in architecture.parts() if any_under(part, paths)]


def any_under(part: str, paths: Iterable[str]) -> bool:
    """Whether any of the parameters belongs to a part."""
    return any(path.startswith(f"{part}/") for path in paths)


def maps_of(architecture: ModuleType, parts: Iterable[str]) -> list[ArrayMap]:
    """The maps of all arrays of some parts."""
    known = architecture.parts()
    return [each for part in parts for each in known[part]]
