"""Check a whole config against the declared constraints of its fields (`validation/schema.py`).

Invalid values are refused before anything is read, written or compiled, and without a device.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from ml_collections import ConfigDict

from bertjax import catalog
from bertjax.constraints import (
    OneOf,
    check_fields,
    check_relations,
    check_value,
    fields_of,
    relations_of,
    with_defaults,
)
from bertjax.errors import UserError
from bertjax.train.evaluate import HELD_OUT
from bertjax.validation import schema


def check(config: ConfigDict) -> None:
    """Checks all fields of a config and the relations between them.

    Raises:
      UserError: naming the first invalid field, its value and the expected values.
    """
    if missing := [name for name in schema.REQUIRED if name not in config]:
        raise UserError(
            f"config has no section {missing[0]!r}: expected {', '.join(schema.REQUIRED)}"
        )
    for name in schema.REQUIRED:
        if not isinstance(config[name], ConfigDict):
            raise UserError(f"config.{name}: got {config[name]!r}, expected a section")
    modules = objective_modules(config)
    for section in ("", *_sections(config), *(f"objectives.{name}" for name in modules)):
        _check_section(config, section)
    _check_weights(config, modules)
    _check_order(config, modules)
    _check_whole_batch(config)
    if "task" not in config:
        _check_model_relations(config, modules)
        _check_best_metric(config)
        _check_budget(config)
    elif restarts := config.optimizer.get("restarts"):
        raise UserError(
            f"config.optimizer.restarts: got {restarts}, expected () in a fine-tuning, "
            "which has no phases; leave it out"
        )


def check_model(fields: Mapping[str, Any]) -> None:
    """Checks a whole `config.model`.

    Raises:
      UserError: naming the first invalid field.
    """
    _check_section(ConfigDict({"model": dict(fields)}), "model")


def check_task_model(config: ConfigDict) -> None:
    """Checks the relations between the fields of a task's head and those of the model.

    Args:
      config: Config of a fine-tuning, with all fields of the model.

    Raises:
      UserError: naming the fields.
    """
    model = with_defaults(catalog.load("models", config.model.name).Model, config.model)
    head = schema.plug_in_class(config, "task.name")
    values = model | with_defaults(head, config.task)
    check_relations(head.model_relations, values, "config.task and config.model")


def objective_modules(config: ConfigDict) -> dict[str, type]:
    """The module of each of a config's objectives.

    Raises:
      UserError: there is no such objective.
    """
    named = config.objectives if "objectives" in config else {}
    return {name: catalog.load("objectives", name).Objective for name in named}


def held_out_metrics(config: ConfigDict) -> dict[str, str]:
    """The metrics of an evaluation of a pretraining, with the better direction.

    "min", "max", or "" where neither is better.
    """
    found = {}
    for name, module in objective_modules(config).items():
        own = {"loss": "min"} | ({"perplexity": "min"} if module.predicts_tokens else {})
        own |= dict(module.metrics)
        found |= {f"{HELD_OUT}{name}/{metric}": mode for metric, mode in own.items()}
    return found


def _sections(config: ConfigDict) -> list[str]:
    """Names of the sections of a config, without objectives."""
    unknown = () if "task" in config else ("task", "model_preferences")
    return [name for name in schema.SHARED if name in config and name not in unknown]


def _check_section(config: ConfigDict, section: str) -> None:
    where = f"config.{section}" if section else "config"
    hints = schema.hints(config, section)
    if section:
        values = dict(_get_section(config, section))
    else:
        known = (*_sections(config), "objectives", schema.WRITTEN_BY_RUN)
        values = {name: value for name, value in config.items() if name not in known}
    check_fields(hints, values, where)
    if section in schema.CHANGES and "task" in config:
        return
    classes = schema.declarations(config, section)
    for declared in classes:
        values = with_defaults(declared, values)
    for declared in classes:
        check_relations(relations_of(declared), values, where)


def _get_section(config: ConfigDict, section: str) -> ConfigDict:
    for name in section.split("."):
        config = config[name]
    return config


def _check_model_relations(config: ConfigDict, modules: Mapping[str, type]) -> None:
    """Checks the `model_relations` of objectives, between their fields and the model's."""
    model = with_defaults(catalog.load("models", config.model.name).Model, config.model)
    for name, module in modules.items():
        values = model | with_defaults(module, config.objectives[name])
        where = f"config.objectives.{name} and config.model"
        check_relations(getattr(module, "model_relations", ()), values, where)


def _check_whole_batch(config: ConfigDict) -> None:
    """Refuses options that sum gradients of parts if a task's loss compares all examples.

    Raises:
      UserError: naming the option that splits the batch.
    """
    if "task" not in config or not schema.plug_in_class(config, "task.name").compares_examples:
        return
    if config.data.microbatches > 1 and "objectives" in config and config.objectives:
        raise UserError(
            f"config.data.microbatches: got {config.data.microbatches}, expected 1, as "
            f"config.task.name={config.task.name} compares all examples of a batch, and the run "
            "has further objectives; leave one of them out"
        )
    parts = {
        "mesh.grad_reduce_in_bf16": (config.mesh.grad_reduce_in_bf16, False),
        "mesh.shard_optimizer": (config.mesh.shard_optimizer, False),
    }
    for name, (found, expected) in parts.items():
        if found != expected:
            raise UserError(
                f"config.{name}: got {found}, expected {expected}, as config.task.name="
                f"{config.task.name} compares all examples of a batch, whose gradient is then not "
                "a sum over its parts; leave it out"
            )


def _check_weights(config: ConfigDict, modules: Mapping[str, type]) -> None:
    """Raises `UserError` if no objective or task has a positive weight."""
    weights = {
        f"objectives.{name}": with_defaults(module, config.objectives[name])["weight"]
        for name, module in modules.items()
    }
    if "task" in config:
        task = schema.plug_in_class(config, "task.name")
        weights["task"] = with_defaults(task, config.task)["weight"]
    if not any(weights.values()):
        got = ", ".join(f"config.{name}.weight={value}" for name, value in weights.items())
        raise UserError(f"nothing is trained: got {got or 'no objective'}, expected a weight > 0")


def _check_order(config: ConfigDict, modules: Mapping[str, type]) -> None:
    """Checks that an objective follows the objectives whose batch keys it reads.

    Its class names the alternatives in `follows`, or its field `of` names the one.
    """
    before = [config.task.name] if "task" in config else []
    for name, module in modules.items():
        needed = getattr(module, "follows", ())
        if "of" in fields_of(module):
            needed = (with_defaults(module, config.objectives[name])["of"],)
        if needed and not set(needed) & set(before):
            raise UserError(
                f"config.objectives.{name}: got {', '.join(before) or 'nothing'} before it, "
                f"expected {' or '.join(map(repr, needed))}; add one before {name}"
            )
        before.append(name)


def require_steps(config: ConfigDict) -> None:
    """Raises `UserError` if a run has a number of epochs, which `pretrain` converts to steps."""
    if "num_train_epochs" in config:
        raise UserError(
            f"config.num_train_epochs: got {config.num_train_epochs}, expected num_train_steps, "
            "since epochs depend on the corpus, which is not read here"
        )


def _check_best_metric(config: ConfigDict) -> None:
    known = held_out_metrics(config)
    check_value(Annotated[str, OneOf(known)], config.best_metric, "config.best_metric")
    better = known[config.best_metric]
    if better and config.best_mode != better:
        raise UserError(
            f"config.best_mode: got {config.best_mode!r}, expected {better!r}, which is better for "
            f"{config.best_metric}"
        )


def _check_budget(config: ConfigDict) -> None:
    """Checks that the length of a run is in steps, and one with a time budget has no phases."""
    if "num_train_tokens" in config:
        raise UserError(
            f"config.num_train_tokens: got {config.num_train_tokens:,} in a config that was not "
            "made by load_config, expected num_train_steps"
        )
    if "budget_seconds" in config and config.budget_seconds and len(config.data.phases) > 1:
        raise UserError(
            f"config.budget_seconds: got {config.budget_seconds} with {len(config.data.phases)} "
            "phases, expected one, since phases are counted in steps; set --config.data.phases='()'"
        )
