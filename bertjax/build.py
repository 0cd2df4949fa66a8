"""From a config to the objects of a run: the only reader of whole configs.

Everything here is checked before anything is compiled: a name that does not exist, a field that a
module does not have, sizes that do not divide.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import catalog
from bertjax.data.examples import Examples
from bertjax.errors import UserError, nearest
from bertjax.interfaces import Pretrainer, Tokenizer
from bertjax.layers.precision import NAMED
from bertjax.train import flops, optimizer, schedule, sharding, step
from bertjax.train import state as train_state
from bertjax.train.step import EvalStep, TrainStep

_LABELS = ("name", "size")
"""Fields of `config.model` that name it and are none of its module's."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run in which all batches have one shape."""

    steps: int
    max_seq_length: int
    batch_size: int


@dataclasses.dataclass(frozen=True)
class Trainer:
    """What one kind of run is made of once its shapes are known.

    Attributes:
      mesh: The devices.
      pretrainer: The encoder and its objectives.
      shapes: The state as shapes with shardings, which is what a checkpoint is restored onto.
      train_step: Jitted; gives its state away.
      eval_step: Jitted.
      create_state: Makes the first state, on the mesh.
    """

    mesh: Mesh
    pretrainer: Pretrainer
    shapes: PyTree
    train_step: TrainStep
    eval_step: EvalStep
    create_state: Callable[[], train_state.TrainState]


def encoder(fields: Mapping[str, Any]) -> nn.Module:
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


def precision(name: str) -> str:
    """Resolves "auto": what is fastest on this kind of device without harm to the result.

    Raises:
      UserError: an unknown name.
    """
    if name == "auto":
        return "bfloat16_operands" if jax.default_backend() == "cpu" else "bfloat16"
    if name not in NAMED:
        raise UserError(f"config.model.precision={name!r}: {nearest(name, [*NAMED, 'auto'])}")
    return name


def objectives(
    sections: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]
) -> dict[str, Callable[[], nn.Module]]:
    """What makes each objective, by name.

    Args:
      sections: `config.objectives`: fields by objective.
      facts: What objectives may want to know of the tokenizer and the run, by field name.

    Raises:
      UserError: no such objective, a field that it does not have, or two that rewrite the input.
    """
    made = {}
    for name, fields in sections.items():
        module = catalog.load("objectives", name).Objective
        wanted = {field: value for field, value in facts.items() if field in _fields(module)}
        made[name] = construct(module, {**wanted, **fields}, f"config.objectives.{name}")
    rewriting = [name for name, make in made.items() if make.func.rewrites_input]
    if len(rewriting) > 1:
        raise UserError(f"objectives {' and '.join(rewriting)} both rewrite input_ids: keep one")
    return made


def construct(module: type, values: Mapping[str, Any], where: str) -> functools.partial:
    """`module(**values)`, to be called, once every field is known to be one of the module's.

    Raises:
      UserError: an unknown field, with the nearest that there is.
    """
    known = _fields(module)
    for name in values:
        if name not in known:
            raise UserError(f"no field {name!r} in {where}: {nearest(name, known)}")
    return functools.partial(module, **values)


def _fields(module: type) -> list[str]:
    hidden = ("parent", "name")
    return [field.name for field in dataclasses.fields(module) if field.name not in hidden]


def facts(tokenizer: Tokenizer, seed: int) -> dict[str, Any]:
    """What objectives may ask of a tokenizer and a run."""
    return {
        "vocab_size": tokenizer.vocab_size,
        "mask_id": tokenizer.mask_id,
        "special_ids": tokenizer.special_ids,
        "seed": seed,
    }


def phases(config: ConfigDict) -> list[Phase]:
    """The phases of a run; one, unless `config.data.phases` lists several.

    Raises:
      UserError: they do not add up to the run, or exceed the model's positions.
    """
    data = config.data
    listed = data.phases or ((config.num_train_steps, data.max_seq_length, data.batch_size),)
    found = [Phase(*phase) for phase in listed]
    total = sum(phase.steps for phase in found)
    if total != config.num_train_steps:
        raise UserError(
            f"config.data.phases add up to {total} steps, config.num_train_steps is "
            f"{config.num_train_steps}: change one, or set --config.data.phases='()'"
        )
    longest = max(phase.max_seq_length for phase in found)
    if longest > config.model.max_position_embeddings:
        raise UserError(
            f"sequences of {longest} tokens exceed config.model.max_position_embeddings="
            f"{config.model.max_position_embeddings}: shorten them or raise it"
        )
    return found


def check_vocabulary(config: ConfigDict, tokenizer: Tokenizer) -> None:
    """Raises `UserError` unless the model's vocabulary is the tokenizer's."""
    if config.model.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"config.model.vocab_size={config.model.vocab_size}, the tokenizer has "
            f"{tokenizer.vocab_size} pieces: set --config.model.vocab_size={tokenizer.vocab_size}"
        )


def examples(config: ConfigDict, corpus: Any, tokenizer: Tokenizer, length: int) -> Examples:
    """The examples of a split at one length, in the format that the config asks for."""
    data, mlm = config.data, config.objectives.get("mlm", {})
    paired = "sentence_pair" in config.objectives
    if paired and data.pair == "none":
        raise UserError(
            "objective sentence_pair needs labelled pairs: set config.data.pair to next or order"
        )
    return Examples(
        corpus,
        format=data.format,
        pair=data.pair,
        max_seq_length=length,
        short_seq_prob=data.short_seq_prob,
        seed=config.seed,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        pad_id=tokenizer.pad_id,
        word_starts=tokenizer.word_starts if mlm.get("whole_word") else None,
        resegment=not mlm.get("static", False),
    )


def check(config: ConfigDict) -> None:
    """Finds the mistakes that can be found before any text is read.

    Raises:
      UserError: naming the first.
    """
    make_schedule(config)
    make_optimizer(config)
    encoder(config.model)
    unknown = {"vocab_size": 0, "mask_id": 0, "special_ids": (), "seed": 0}
    objectives(config.objectives, unknown)


def make_schedule(config: ConfigDict) -> optax.Schedule:
    """The learning rate of each step of a run."""
    fields = config.optimizer
    return schedule.make(
        fields.schedule,
        learning_rate=fields.learning_rate,
        num_train_steps=config.num_train_steps,
        warmup_steps=fields.warmup_steps,
        end_learning_rate=fields.end_learning_rate,
        power=fields.power,
    )


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """The way from gradient to direction."""
    names = ("weight_decay", "adam_b1", "adam_b2", "adam_eps", "max_grad_norm")
    fields = config.optimizer
    return optimizer.make(fields.name, **{name: fields[name] for name in names})


def make_mesh(config: ConfigDict, batch_sizes: Sequence[int] = ()) -> Mesh:
    """The mesh of a config, on which batches of these sizes divide.

    Raises:
      UserError: the mesh does not fit the devices, or something does not divide over it.
    """
    mesh = sharding.make_mesh({axis: config.mesh[axis] for axis in sharding.MESH_AXES})
    for batch_size in batch_sizes:
        sharding.check_batch_size(batch_size, mesh, config.data.microbatches)
    return mesh


def trainer(
    config: ConfigDict, pretrainer: Pretrainer, mesh: Mesh, batch: Mapping[str, np.ndarray]
) -> Trainer:
    """Everything that is compiled for a run, and where its state lies on the mesh.

    Args:
      config: Of a run.
      pretrainer: The encoder and what it learns.
      mesh: The devices.
      batch: Any batch of the run; its shapes alone count.
    """
    rules = (*config.mesh.rules, *sharding.RULES)
    direction, rate = make_optimizer(config), make_schedule(config)
    template = {name: jnp.zeros((1, *rows.shape[1:]), rows.dtype) for name, rows in batch.items()}
    template["example_key"] = jax.random.split(jax.random.key(0), 1)

    def create():
        return train_state.create(pretrainer, direction, template, config.seed)

    boxed = jax.eval_shape(create)
    placed = sharding.shardings(boxed, mesh, rules)
    shapes = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        nn.meta.unbox(boxed),
        placed,
    )

    def on_mesh(function):
        @functools.wraps(function)
        def traced(*arguments):
            with mesh, nn.logical_axis_rules(rules):
                return function(*arguments)

        return traced

    train_step = step.make_train_step(
        pretrainer, direction, rate, seed=config.seed, microbatches=config.data.microbatches
    )
    eval_step = step.make_eval_step(pretrainer, seed=config.seed)
    return Trainer(
        mesh=mesh,
        pretrainer=pretrainer,
        shapes=shapes,
        train_step=jax.jit(
            on_mesh(train_step),
            donate_argnums=0,
            in_shardings=(placed, sharding.batch_sharding(mesh)),
            out_shardings=(placed, None),
        ),
        eval_step=jax.jit(
            on_mesh(eval_step), in_shardings=(placed.params, sharding.batch_sharding(mesh))
        ),
        create_state=jax.jit(
            lambda: train_state.unboxed(create()), out_shardings=placed
        ),
    )


def parameter_count(shapes: PyTree) -> int:
    """How many numbers a tree of shapes holds."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def flops_of(trainer: Trainer, batch: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> float:
    """FLOPs of the model for a step on a batch like this one, but of the shape (B, L)."""
    batch_size, length = shape
    rows = {
        name: jax.ShapeDtypeStruct((batch_size, *([length] * (values.ndim - 1))), values.dtype)
        for name, values in batch.items()
    }
    rows["example_key"] = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch_size))

    def losses(params, rows):
        return trainer.pretrainer.apply({"params": params}, rows, train=False)[0]

    return flops.training_flops(losses, trainer.shapes.params, rows)
