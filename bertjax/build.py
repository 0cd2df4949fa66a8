"""Build the objects of a run from its config; the only reader of whole configs.

Configs are checked before anything is compiled: names without a file, unknown fields, sizes that do
not divide.
"""

import dataclasses
import functools
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
from bertjax.constraints import fields_of, with_defaults
from bertjax.data.format import Format
from bertjax.errors import UserError, nearest
from bertjax.interfaces import Tokenizer
from bertjax.layers import layer_choice as frozen_layers
from bertjax.layers import width_scaling
from bertjax.layers.dense import PRECISIONS
from bertjax.pretrainer import Encoded, Pretrainer, apply_encoder
from bertjax.runtime import chips, host
from bertjax.train import optimizer, schedule, sharding
from bertjax.train.step import NO_PARAMS, Microbatches
from bertjax.train.trainer import Trainer, make_trainer
from bertjax.validation import config as validation_config
from bertjax.validation import schema


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run in which all batches have one shape.

    Attributes:
      steps: Number of optimizer steps.
      max_seq_length: Tokens of a sequence.
      batch_size: Sequences of a step.
      microbatches: Number of parts of a batch whose gradients are accumulated.
      mixture: Weights of the corpora of a mixture; () weights them by size.
    """

    steps: int
    max_seq_length: int
    batch_size: int
    microbatches: int = 1
    mixture: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """(B, L)."""
        return self.batch_size, self.max_seq_length


def encoder(fields: Mapping[str, Any]) -> Any:
    """Builds the encoder that `config.model` describes.

    Raises:
      UserError: no such model, or a field that it does not have.
    """
    values = {name: value for name, value in fields.items() if name not in ("name", "size")}
    if "precision" in values:
        values["precision"] = precision(fields)
    if values.get("unroll") == 0:
        on_cpu = jax.default_backend() == "cpu"
        values["unroll"] = max(num_hidden_layers(fields), 1) if on_cpu else 1
    return construct(_model(fields), values, "config.model")()


def cls_last(fields: Mapping[str, Any]) -> bool:
    """Whether the model that `config.model` describes has [CLS] at the end of a sequence."""
    return getattr(_model(fields), "cls_last", False)


def supports_packing(fields: Mapping[str, Any]) -> bool:
    """Whether the model that `config.model` describes separates texts that share a row."""
    return getattr(_model(fields), "supports_packing", True)


def model_fields(fields: Mapping[str, Any]) -> list[str]:
    """Names of all fields of the model that `config.model` describes."""
    return list(fields_of(_model(fields)))


def model_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`config.model`, and the model's defaults of the fields that it leaves out."""
    return with_defaults(_model(fields), fields)


def num_hidden_layers(fields: Mapping[str, Any]) -> int:
    """N, the number of layers of the model; 0 for a model without that field."""
    return model_values(fields).get("num_hidden_layers", 0)


def _model(fields: Mapping[str, Any]) -> type:
    return catalog.load("models", fields["name"]).Model


def precision(fields: Mapping[str, Any]) -> str:
    """The precision of the model that `config.model` describes; "auto" is resolved.

    "auto" is the fastest on this kind of device that does not change the results of training.

    Raises:
      UserError: an unknown name, or one that the devices do not have.
    """
    name = model_values(fields).get("precision", "float32")
    if name == "auto":
        if jax.default_backend() != "cpu":
            return "bfloat16"
        return "bfloat16_operands" if host.has_bfloat16_matmul() else "float32"
    if name not in PRECISIONS:
        raise UserError(f"config.model.precision={name!r}: {nearest(name, [*PRECISIONS, 'auto'])}")
    if quantized := PRECISIONS[name].quantized:
        chips.check_8bit(quantized, jax.devices()[0].device_kind)
    return name


def objectives(
    sections: Mapping[str, Mapping[str, Any]], tokenizer_fields: Mapping[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Functions that build the objectives, by name.

    Args:
      sections: `config.objectives`: fields by objective.
      tokenizer_fields: Properties of the tokenizer and the run that objectives may have as fields.

    Raises:
      UserError: no such objective, a field that it does not have, or two that rewrite the input.
    """
    made = {}
    for name, fields in sections.items():
        module = catalog.load("objectives", name).Objective
        known = fields_of(module)
        shared = {field: value for field, value in tokenizer_fields.items() if field in known}
        made[name] = construct(module, {**shared, **fields}, f"config.objectives.{name}")
    rewriting = [name for name, make in made.items() if make.func.rewrites_input]
    if len(rewriting) > 1:
        raise UserError(
            f"config.objectives: got {' and '.join(rewriting)}, which rewrite input_ids, expected "
            "at most one of these; remove the others"
        )
    return made


def task(section: Mapping[str, Any], **fields: Any) -> Callable[[], Any]:
    """A function that builds the head of a task.

    Args:
      section: `config.task`.
      fields: Fields of the head, which replace those of the section.

    Raises:
      UserError: no such task, or a field that it does not have.
    """
    module = catalog.load("tasks", section["name"], "head").Task
    values = {name: value for name, value in section.items() if name != "name"}
    return construct(module, {**values, **fields}, "config.task")


def construct(module: type, values: Mapping[str, Any], where: str) -> functools.partial:
    """Binds values to a module's fields and returns the constructor.

    Raises:
      UserError: an unknown field; the nearest is named.
    """
    known = fields_of(module)
    for name in values:
        if name not in known:
            raise UserError(f"no field {name!r} in {where}: {nearest(name, known)}")
    return functools.partial(module, **values)


def tokenizer_fields(config: ConfigDict, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Fields of objectives that follow from the run and its tokenizer, by default WordPiece's."""
    return {
        "vocab_size": model_values(config.model).get("vocab_size", 0),
        "mask_id": tokenizer.mask_id if tokenizer else 4,
        "unk_id": tokenizer.unk_id if tokenizer else 1,
        "special_ids": tokenizer.special_ids if tokenizer else (0, 1, 2, 3, 4),
        "pad_id": tokenizer.pad_id if tokenizer else 0,
        "sep_id": tokenizer.sep_id if tokenizer else 3,
        "seed": config.seed,
        "num_train_steps": config.get("num_train_steps", 1),
    }


def phases(config: ConfigDict) -> list[Phase]:
    """The phases of a run; one, unless `config.data.phases` lists several.

    Raises:
      UserError: their steps do not sum to those of the run, or sequences exceed the positions.
    """
    data = config.data
    listed = data.phases or ((config.num_train_steps, data.max_seq_length, data.batch_size),)
    for phase in listed:
        if len(phase) not in (3, 4):
            raise UserError(
                f"config.data.phases: got {tuple(phase)}, expected (steps, length, batch_size) or "
                "(steps, length, batch_size, microbatches)"
            )
    found = [Phase(*(*phase, data.microbatches)[:4]) for phase in listed]
    if (total := sum(phase.steps for phase in found)) != config.num_train_steps:
        raise UserError(
            f"config.data.phases: got {total} steps in total, expected config.num_train_steps="
            f"{config.num_train_steps}; change one of them, or set --config.data.phases='()'"
        )
    _check_shapes(config, found)
    max_length = max(phase.max_seq_length for phase in found)
    if max_length > positions(config.model):
        raise UserError(
            f"config.data: got sequences of {max_length} tokens, expected at most "
            f"{positions(config.model)}, the positions of config.model.max_position_embeddings; "
            "shorten them or raise it"
        )
    return found


def positions(model: Mapping[str, Any]) -> float:
    """Maximum length of a sequence; infinity for a model without absolute positions."""
    values = model_values(model)
    return values.get("max_position_embeddings", math.inf) - values.get("position_offset", 0)


def microbatches(phases: Sequence[Phase]) -> Microbatches:
    """Number of microbatches of a step: one for all phases, or by (batch size, length)."""
    numbers = {phase.shape: phase.microbatches for phase in phases}
    return phases[0].microbatches if len(set(numbers.values())) == 1 else numbers


def _check_shapes(config: ConfigDict, found: Sequence[Phase]) -> None:
    parts = {phase.shape: phase.microbatches for phase in found}
    if any(parts[phase.shape] != phase.microbatches for phase in found):
        raise UserError(
            "config.data.phases: got phases of one length and batch size with different numbers of "
            "microbatches, expected one number; make them equal"
        )
    sizes = sorted({phase.batch_size for phase in found})
    # Row i of a batch continues in row i of the next one, with the state of the model.
    if example_format(config).rows_continue and len(sizes) > 1:
        raise UserError(
            f"config.data.phases: got batch sizes {sizes}, expected one, since with format "
            f"{config.data.format} rows continue from step to step; make them equal"
        )


def extra_ids(config: Mapping[str, Any]) -> int:
    """Number of ids of a model after those of its tokenizer: sentinels of T5, rows of an import."""
    spare = config.get("imported", config.get("init", {})).get("spare_rows", 0)
    if "objectives" not in config:
        return config.get("init", {}).get("extra_ids", spare)
    return spare + sum(fields.get("num_sentinels", 0) for fields in config["objectives"].values())


def check_vocabulary(config: ConfigDict, tokenizer: Tokenizer, extra: int = 0) -> None:
    """Raises `UserError` unless `vocab_size` is the tokenizer's plus `extra` ids."""
    vocab_size = model_values(config.model)["vocab_size"]
    if vocab_size != tokenizer.vocab_size + extra:
        size = tokenizer.vocab_size + extra
        others = f" and {extra} ids after them" if extra else ""
        raise UserError(
            f"config.model.vocab_size: got {vocab_size}, expected {size}, the tokenizer's "
            f"{tokenizer.vocab_size} tokens{others}; set --config.model.vocab_size={size}"
        )


def check(config: ConfigDict) -> None:
    """Checks all values of a config, before anything is read and without a device.

    Raises:
      UserError: naming the first that is invalid.
    """
    validation_config.check(config)
    if "task" in config:
        return
    phases(config)
    make_schedule(config)
    make_optimizer(config)
    objectives(config.objectives, tokenizer_fields(config))


def make_schedule(config: ConfigDict) -> optax.Schedule:
    """Builds the learning rate schedule of a run, which phases may restart.

    Raises:
      UserError: an invalid learning rate, or a number of restarts that is not that of the phases.
    """
    fields = config.optimizer
    rates, steps = [(fields.learning_rate, fields.warmup_steps)], [config.num_train_steps]
    if restarts := fields.get("restarts", ()):
        steps = [phase.steps for phase in phases(config)]
        if [len(restart) for restart in restarts] != [2] * (len(steps) - 1):
            raise UserError(
                f"config.optimizer.restarts: got {restarts}, expected (learning_rate, warmup_steps)"
                f" for each of the {len(steps)} phases of config.data.phases but the first"
            )
        rates += restarts
    own = schema.plug_in_fields(config, "optimizer.schedule")
    return schedule.join(fields.schedule, rates, steps, **own)


def run_field(config: ConfigDict, name: str) -> Any:
    """A top-level field of a run, or its default if the config does not set it."""
    (declared,) = schema.declarations(config, "")
    return config.get(name, getattr(declared, name, None))


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """Builds the optimizer of a run; see `train/optimizer.py`."""
    fields, model = config.optimizer, config.model
    # The recipe of a fine-tuning has no model yet.
    values = model_values(model) if "name" in model else {}
    return optimizer.make(
        fields.name,
        **{name: fields[name] for name in optimizer.SHARED if name in fields},
        num_layers=values.get("num_hidden_layers", 0),
        mup_width_ratio=width_scaling.mup_width_ratio(values),
        frozen_parts=("encoder",) if freezes_encoder(config) else (),
        **schema.plug_in_fields(config, "optimizer.name"),
    )


def freezes_encoder(config: ConfigDict) -> bool:
    """Whether only the modules above the encoder are trained."""
    return config.optimizer.get("freeze_encoder", False)


def encode(config: ConfigDict) -> Callable[..., Encoded]:
    """The function that applies a run's encoder to a batch."""
    return frozen_layers.frozen_features if freezes_encoder(config) else apply_encoder


def make_mesh(config: ConfigDict, phases: Sequence[Phase] = ()) -> Mesh:
    """Builds the mesh of a config, over which the batches of these phases divide.

    Raises:
      UserError: the mesh does not fit the devices, or a batch does not divide over it.
    """
    return mesh_on(config, jax.devices(), phases)


def mesh_on(
    config: ConfigDict, devices: Sequence[jax.Device], phases: Sequence[Phase] = ()
) -> Mesh:
    """`make_mesh` on given devices, which may be descriptions of hardware that is not present."""
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
    frozen: Mapping[str, PyTree] = NO_PARAMS,
) -> Trainer:
    """Builds the compiled functions of a run.

    Args:
      config: Config of the run.
      pretrainer: The encoder and its objectives.
      mesh: The devices.
      batch: Any host batch.
      phases: Phases of a pretraining.
      frozen: Parameters that are not trained, by objective.

    Raises:
      UserError: an array does not divide over the mesh, or `frozen` has other shapes.
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
    """The class of `config.data.format`; see `data/format.py`."""
    return catalog.load("data/formats", config.data.format).Format
