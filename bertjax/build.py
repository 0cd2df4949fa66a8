"""Build the objects of a run from its config; the only reader of whole configs.

Everything here is checked before anything is compiled: a name that does not exist, a field that a
module does not have, sizes that do not divide.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import catalog
from bertjax.constraints import fields_of
from bertjax.data.format import Format
from bertjax.errors import UserError, nearest
from bertjax.interfaces import Tokenizer
from bertjax.layers import layer_choice as frozen_layers
from bertjax.layers.dense import NAMED
from bertjax.pretrainer import Encoded, Pretrainer, apply_encoder
from bertjax.runtime import host
from bertjax.train import optimizer, schedule, sharding
from bertjax.train.step import NOTHING, Microbatches
from bertjax.train.trainer import Trainer, make_trainer
from bertjax.validation import config as validation_config
from bertjax.validation import schema

_LABELS = ("name", "size")
"""Fields of `config.model` that name it and are none of its module's."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run in which all batches have one shape.

    Attributes:
      steps: How many.
      max_seq_length: Tokens of a sequence.
      batch_size: Sequences of a step.
      microbatches: Parts in which a step takes these, one after the other.
    """

    steps: int
    max_seq_length: int
    batch_size: int
    microbatches: int = 1


def encoder(fields: Mapping[str, Any]) -> Any:
    """The module that `config.model` describes.

    Raises:
      UserError: no such model, or a field that it does not have.
    """
    module = catalog.load("models", fields["name"]).Model
    values = {name: value for name, value in fields.items() if name not in _LABELS}
    values |= {"precision": precision(fields["precision"])}
    if fields["unroll"] == 0:
        values["unroll"] = fields["num_hidden_layers"] if jax.default_backend() == "cpu" else 1
    return construct(module, values, "config.model")()


def cls_last(fields: Mapping[str, Any]) -> bool:
    """Whether the model that `config.model` describes reads [CLS] at the end of a sequence."""
    return getattr(catalog.load("models", fields["name"]).Model, "cls_last", False)


def model_fields(fields: Mapping[str, Any]) -> list[str]:
    """All fields of the model that `config.model` describes, those it leaves out too."""
    return list(fields_of(catalog.load("models", fields["name"]).Model))


def precision(name: str) -> str:
    """Resolves "auto": what is fastest on this kind of device without harm to the result.

    Raises:
      UserError: an unknown name.
    """
    if name == "auto":
        if jax.default_backend() != "cpu":
            return "bfloat16"
        return "bfloat16_operands" if host.has_bfloat16_matmul() else "float32"
    if name not in NAMED:
        raise UserError(f"config.model.precision={name!r}: {nearest(name, [*NAMED, 'auto'])}")
    return name


def objectives(
    sections: Mapping[str, Mapping[str, Any]], tokenizer_fields: Mapping[str, Any]
) -> dict[str, Callable[[], Any]]:
    """What makes each objective, by name.

    Args:
      sections: `config.objectives`: fields by objective.
      tokenizer_fields: Properties of the tokenizer and the run that objectives may have as fields.

    Raises:
      UserError: no such objective, a field that it does not have, or two that rewrite the input.
    """
    made = {}
    for name, fields in sections.items():
        module = catalog.load("objectives", name).Objective
        wanted = {
            field: value for field, value in tokenizer_fields.items() if field in fields_of(module)
        }
        made[name] = construct(module, {**wanted, **fields}, f"config.objectives.{name}")
    rewriting = [name for name, make in made.items() if make.func.rewrites_input]
    if len(rewriting) > 1:
        raise UserError(f"objectives {' and '.join(rewriting)} both rewrite input_ids: keep one")
    return made


def task(section: Mapping[str, Any], **fields: Any) -> Callable[[], Any]:
    """A function that makes the head of a task.

    Args:
      section: `config.task`.
      fields: Fields of the head, instead of those of the section.

    Raises:
      UserError: no such task, or a field that it does not have.
    """
    module = catalog.load("tasks", section["name"], "head").Task
    values = {name: value for name, value in section.items() if name != "name"}
    return construct(module, {**values, **fields}, "config.task")


def construct(module: type, values: Mapping[str, Any], where: str) -> functools.partial:
    """`module(**values)`, to be called, once every field is known to be one of the module's.

    Raises:
      UserError: an unknown field, with the nearest that there is.
    """
    known = fields_of(module)
    for name in values:
        if name not in known:
            raise UserError(f"no field {name!r} in {where}: {nearest(name, known)}")
    return functools.partial(module, **values)


def tokenizer_fields(config: ConfigDict, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """What objectives may ask of a run and its tokenizer; without one, of a likely one."""
    return {
        "vocab_size": config.model.get("vocab_size", 0),
        "mask_id": tokenizer.mask_id if tokenizer else 4,
        "unk_id": tokenizer.unk_id if tokenizer else 1,
        "special_ids": tokenizer.special_ids if tokenizer else (0, 1, 2, 3, 4),
        "pad_id": tokenizer.pad_id if tokenizer else 0,
        "sep_id": tokenizer.sep_id if tokenizer else 3,
        "seed": config.seed,
    }


def phases(config: ConfigDict) -> list[Phase]:
    """The phases of a run; one, unless `config.data.phases` lists several.

    Raises:
      UserError: they do not add up to the run, or exceed the model's positions.
    """
    data = config.data
    listed = data.phases or ((config.num_train_steps, data.max_seq_length, data.batch_size),)
    for phase in listed:
        if len(phase) not in (3, 4):
            raise UserError(
                f"config.data.phases has {tuple(phase)}: expected (steps, length, batch_size), or "
                "(steps, length, batch_size, microbatches)"
            )
    found = [Phase(*(*phase, data.microbatches)[:4]) for phase in listed]
    total = sum(phase.steps for phase in found)
    if total != config.num_train_steps:
        raise UserError(
            f"config.data.phases add up to {total} steps, config.num_train_steps is "
            f"{config.num_train_steps}: change one, or set --config.data.phases='()'"
        )
    _check_parts(found)
    _check_carry(config, found)
    max_length = max(phase.max_seq_length for phase in found)
    if max_length > positions(config.model):
        raise UserError(
            f"sequences of {max_length} tokens exceed config.model.max_position_embeddings="
            f"{config.model.max_position_embeddings}, which holds {positions(config.model)}: "
            "shorten them or raise it"
        )
    return found


def positions(model: Mapping[str, Any]) -> float:
    """How long a sequence may be: rows before `position_offset` hold no token.

    Infinity for a model that knows relative positions alone.
    """
    if "max_position_embeddings" not in model:
        return math.inf
    return model["max_position_embeddings"] - model.get("position_offset", 0)


def microbatches(phases: Sequence[Phase]) -> Microbatches:
    """Parts of a step: one number, or one for each shape of a batch."""
    numbers = {phase.microbatches for phase in phases}
    if len(numbers) == 1:
        return numbers.pop()
    return {_shape(phase): phase.microbatches for phase in phases}


def _shape(phase: Phase) -> tuple[int, int]:
    return phase.batch_size, phase.max_seq_length


def _check_parts(found: Sequence[Phase]) -> None:
    parts = {_shape(phase): phase.microbatches for phase in found}
    if any(parts[_shape(phase)] != phase.microbatches for phase in found):
        raise UserError(
            "config.data.phases of one length and batch size differ in microbatches: give them "
            "one number"
        )


def _check_carry(config: ConfigDict, found: Sequence[Phase]) -> None:
    """Rows of a stream are the rows of a model's memory: there are as many in every phase."""
    sizes = sorted({phase.batch_size for phase in found})
    if example_format(config).rows_continue and len(sizes) > 1:
        raise UserError(
            f"config.data.phases have batches of {sizes} rows, but with format "
            f"{config.data.format} rows continue from step to step: give all phases one batch size"
        )


def extra_ids(config: Mapping[str, Any]) -> int:
    """How many ids a model has beside its tokenizer's: the sentinels of T5."""
    if "objectives" not in config:
        return config.get("init", {}).get("extra_ids", 0)
    return sum(fields.get("num_sentinels", 0) for fields in config["objectives"].values())


def check_vocabulary(config: ConfigDict, tokenizer: Tokenizer, extra: int = 0) -> None:
    """Raises `UserError` unless the model's vocabulary is the tokenizer's, and `extra` ids."""
    if config.model.vocab_size != tokenizer.vocab_size + extra:
        beside = f" and {extra} sentinels stand behind them" if extra else ""
        raise UserError(
            f"config.model.vocab_size={config.model.vocab_size}, the tokenizer has "
            f"{tokenizer.vocab_size} pieces{beside}: set "
            f"--config.model.vocab_size={tokenizer.vocab_size + extra}"
        )


def check(config: ConfigDict) -> None:
    """Refuses values that cannot be meant, before anything is read, on no device.

    Raises:
      UserError: naming the first.
    """
    validation_config.check(config)
    if "task" in config:
        return
    phases(config)
    make_schedule(config)
    make_optimizer(config)
    objectives(config.objectives, tokenizer_fields(config))


def make_schedule(config: ConfigDict) -> optax.Schedule:
    """The learning rate of each step of a run, in which every phase may begin anew.

    Raises:
      UserError: a rate does not fit, or there are not as many of them as phases.
    """
    fields = config.optimizer
    rates, steps = [(fields.learning_rate, fields.warmup_steps)], [config.num_train_steps]
    if restarts := fields.get("restarts", ()):
        steps = [phase.steps for phase in phases(config)]
        if [len(restart) for restart in restarts] != [2] * (len(steps) - 1):
            raise UserError(
                f"config.optimizer.restarts={restarts}: expected (learning_rate, warmup_steps) for "
                f"each of the {len(steps)} phases of config.data.phases but the first"
            )
        rates += restarts
    made = [
        schedule.make(
            fields.schedule,
            learning_rate=learning_rate,
            num_train_steps=count,
            warmup_steps=warmup_steps,
            **schema.own_fields(config, "optimizer.schedule"),
        )
        for (learning_rate, warmup_steps), count in zip(rates, steps, strict=True)
    ]
    return optax.join_schedules(made, list(itertools.accumulate(steps))[:-1])


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """The map from gradient to direction; see `train/optimizer.py`."""
    fields = config.optimizer
    return optimizer.make(
        fields.name,
        max_grad_norm=fields.max_grad_norm,
        layerwise_decay=fields.get("layerwise_decay", 1.0),
        num_layers=config.model.get("num_hidden_layers", 0),
        frozen_parts=("encoder",) if freezes_encoder(config) else (),
        **schema.own_fields(config, "optimizer.name"),
    )


def freezes_encoder(config: ConfigDict) -> bool:
    """Whether a run takes its encoder as it is, and learns what stands on it alone."""
    return config.optimizer.get("freeze_encoder", False)


def encode(config: ConfigDict) -> Callable[..., Encoded]:
    """How a run's encoder reads a batch."""
    return frozen_layers.frozen_features if freezes_encoder(config) else apply_encoder


def make_mesh(config: ConfigDict, phases: Sequence[Phase] = ()) -> Mesh:
    """The mesh of a config, on which the batches of these phases divide.

    Where its devices are the host itself, freed memory stays with this process from here on.

    Raises:
      UserError: the mesh does not fit the devices, or something does not divide over it.
    """
    mesh = mesh_on(config, jax.devices(), phases)
    if mesh.devices.flat[0].platform == "cpu":
        host.keep_freed_memory()
    return mesh


def mesh_on(
    config: ConfigDict, devices: Sequence[jax.Device], phases: Sequence[Phase] = ()
) -> Mesh:
    """The mesh of a config on these devices, which may be only described; see `make_mesh`.

    Raises:
      UserError: the mesh does not fit the devices, or something does not divide over it.
    """
    mesh = sharding.make_mesh({axis: config.mesh[axis] for axis in sharding.MESH_AXES}, devices)
    for phase in phases:
        sharding.check_batch_size(phase.batch_size, mesh, phase.microbatches)
        sharding.check_length(phase.max_seq_length, mesh)
    return mesh


def trainer(
    config: ConfigDict,
    pretrainer: Pretrainer,
    mesh: Mesh,
    batch: Mapping[str, np.ndarray],
    *,
    phases: Sequence[Phase] = (),
    frozen: Mapping[str, PyTree] = NOTHING,
) -> Trainer:
    """Everything that is compiled for a run.

    Args:
      config: Of the run.
      pretrainer: The encoder and its objectives.
      mesh: The devices.
      batch: Any host batch.
      phases: Of a pretraining.
      frozen: Parameters that no step changes, by objective.

    Raises:
      UserError: an array does not divide over the mesh, or `frozen` is not what is expected.
    """
    return make_trainer(
        pretrainer,
        make_optimizer(config),
        make_schedule(config),
        batch,
        mesh=mesh,
        rules=(*config.mesh.rules, *sharding.RULES),
        seed=config.seed,
        microbatches=microbatches(phases) if phases else config.data.microbatches,
        batch_size=phases[-1].batch_size if phases else 1,
        frozen=frozen,
        shard_optimizer=config.mesh.shard_optimizer,
        grad_reduce_in_bf16=config.mesh.grad_reduce_in_bf16,
        attention_kernel=config.mesh.attention_kernel,
    )


def example_format(config: ConfigDict) -> type[Format]:
    """The class of `config.data.format`.

    Raises:
      UserError: there is no such format.
    """
    return catalog.load("data/formats", config.data.format).Format
