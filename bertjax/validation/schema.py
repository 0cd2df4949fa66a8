"""The fields of a config and their allowed values.

Fields of models, objectives and tasks are declared by these modules, those of a task's data by
`tasks/NAME/dataset.py`; all others are declared here. `validation/config.py` checks a config
against all of them.
"""

from typing import Annotated

from ml_collections import ConfigDict

from bertjax import catalog
from bertjax.constraints import (
    AnyText,
    Epsilon,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    OneOf,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    Relation,
    Seed,
    Share,
    ShareBelowOne,
    check_value,
    fields_of,
    integer,
)
from bertjax.corpus import text
from bertjax.data import examples, images, packed, source_targets, streams
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.dense import NAMED
from bertjax.tokenizers import tokenizer
from bertjax.tokenizers.definitions import UNICODE_FORMS
from bertjax.train import epochs
from bertjax.train.checkpoint import retention
from bertjax.train.optimizer import OptimizerName
from bertjax.train.schedule import ScheduleName
from bertjax.train.sharding import MeshRules, MeshSize

FORMATS = (
    *examples.FORMATS,
    *streams.FORMATS,
    *packed.FORMATS,
    *source_targets.FORMATS,
    images.FORMAT,
)
"""What `config.data.format` may be."""


LearningRate = Annotated[float, Number(0.0, 1.0)]
"""Adam's direction has elements near 1: at a rate of 1 a parameter moves by 1 in a step."""


class Run:
    """Fields of the config itself that pretraining and fine-tuning share.

    Attributes:
      seed: Of parameters, dropout, masks and the order of examples.
      log_every: Steps from one report to the next.
      max_skipped_in_a_row: Steps without a finite gradient after which the run stops.
      watchdog_minutes: Time without a step after which all threads' stacks are printed; 0: never.
    """

    seed: Seed
    log_every: PositiveInt
    max_skipped_in_a_row: PositiveInt
    watchdog_minutes: NonNegativeFloat


class PretrainingRun(Run):
    """Fields of the config itself, of a pretraining.

    Attributes:
      num_train_steps: Optimizer steps of the whole run.
      eval_every: Steps from one evaluation to the next; 0 evaluates at the end alone.
      eval_examples: Held-out examples of an evaluation; 0 for all.
      checkpoint_every: Steps from one checkpoint to the next; 0 saves at the end alone.
      keep_checkpoints: How many of the newest stay.
      keep_best: How many of the best by `best_metric` stay; 0 for none.
      best_metric: One of `held_out_metrics`.
      best_mode: Which of its values are better.
    """

    num_train_steps: PositiveInt
    eval_every: Annotated[int, integer(0, meaning="0 evaluates at the end alone")]
    eval_examples: Annotated[int, integer(0, meaning="0 takes all")]
    checkpoint_every: Annotated[int, integer(0, meaning="0 saves at the end alone")]
    keep_checkpoints: PositiveInt
    keep_best: NonNegativeInt
    best_metric: AnyText
    best_mode: Annotated[str, OneOf(retention.DIRECTIONS)]


class FineTuningRun(Run):
    """Fields of the config itself, of a fine-tuning.

    Attributes:
      num_train_epochs: Epochs of each seed.
      choose_epoch: The epoch whose scores count.
      max_train_examples: Examples that are trained on; 0 for all.
      keep_checkpoints: Whether those of finished seeds stay.
      num_train_steps: The run writes it.
    """

    num_train_epochs: PositiveInt
    choose_epoch: Annotated[str, OneOf(epochs.RULES)]
    max_train_examples: Annotated[int, integer(0, meaning="0 takes all")]
    keep_checkpoints: bool
    num_train_steps: PositiveInt


class Tokenizer:
    """`config.tokenizer`: see `tokenizers/tokenizer.py`.

    Attributes:
      path: Of a tokenizer; "" trains one with the other fields.
    """

    path: AnyText
    kind: Annotated[str, OneOf(tokenizer.KINDS)]
    vocab_size: PositiveInt
    lowercase: bool | None
    strip_accents: bool | None
    normalization: Annotated[str, OneOf(UNICODE_FORMS)] | None
    character_coverage: PositiveShare | None


class Data:
    """`config.data` of a pretraining: see `configs/common.py`."""

    corpus: AnyText
    input: tuple[AnyText, ...]
    text_format: Annotated[str, OneOf(text.formats())]
    text_field: AnyText
    validation_input: tuple[AnyText, ...]
    validation_fraction: ShareBelowOne
    cache: AnyText
    format: Annotated[str, OneOf(FORMATS)]
    pair: Annotated[str, OneOf(examples.PAIRS)]
    max_seq_length: PositiveInt
    short_seq_prob: Share | None
    batch_size: PositiveInt
    microbatches: PositiveInt
    phases: tuple[tuple[PositiveInt, ...], ...]


class Optimizer:
    """`config.optimizer`: see `train/optimizer.py` and `train/schedule.py`.

    Attributes:
      warmup_steps: Of a pretraining; a fine-tuning writes it.
      restarts: Learning rate and warmup of each phase but the first.
      max_grad_norm: Longer gradients are scaled down to it; 0 for none.
      warmup_share: Of a fine-tuning: share of its steps.
      layerwise_decay: Below 1, lower layers take shorter steps.
      freeze_encoder: Whether only what stands on the encoder is trained.
    """

    name: OptimizerName
    learning_rate: LearningRate
    schedule: ScheduleName
    warmup_steps: NonNegativeInt
    end_learning_rate: LearningRate
    power: PositiveFloat
    restarts: tuple[tuple[LearningRate, NonNegativeInt], ...]
    weight_decay: NonNegativeFloat
    adam_b1: ShareBelowOne
    adam_b2: ShareBelowOne
    adam_eps: Epsilon
    max_grad_norm: Annotated[float, Number(0.0, meaning="0 clips nothing")]
    warmup_share: Share
    layerwise_decay: PositiveShare
    freeze_encoder: bool

    relations = (
        Relation(
            ("end_learning_rate", "learning_rate"),
            lambda end, peak: end <= peak,
            "end_learning_rate <= learning_rate",
            "lower end_learning_rate",
        ),
        Relation(
            ("learning_rate", "weight_decay"),
            lambda peak, decay: peak * decay < 1,
            "learning_rate * weight_decay < 1, the share that a step takes from a parameter",
            "lower one of them",
        ),
    )


class Mesh:
    """`config.mesh`: see `configs/common.py`."""

    data: Annotated[int, MeshSize()]
    fsdp: Annotated[int, MeshSize()]
    tensor: Annotated[int, MeshSize()]
    sequence: Annotated[int, MeshSize()]
    rules: Annotated[tuple, MeshRules()]
    shard_optimizer: bool
    grad_reduce_in_bf16: bool
    attention_kernel: KernelName


class Model:
    """Fields of `config.model` that are not, or not with these values, fields of its module.

    Attributes:
      name: A file of `models/`.
      size: What the config file calls it.
      precision: "auto" for the fastest on the device.
      unroll: 0 for the fastest on the device.
    """

    name: Annotated[str, OneOf(catalog.names("models"))]
    size: AnyText
    precision: Annotated[str, OneOf((*NAMED, "auto"))]
    unroll: Annotated[int, integer(0, meaning="0 suits the device")]


class Task:
    """The field of `config.task` that is none of its module's.

    Attributes:
      name: A folder of `tasks/`.
    """

    name: Annotated[str, OneOf(catalog.names("tasks", "head"))]


REQUIRED = ("model", "data", "optimizer", "mesh")
SECTIONS = {"tokenizer": Tokenizer, "optimizer": Optimizer, "mesh": Mesh}
ELSEWHERE = ("model", "objectives", "task", "data", "init")
"""Sections whose fields follow from a name in the config; `init` is written by the run."""


def sections(config: ConfigDict) -> dict[str, type]:
    """What declares the fields of each section that a config has, apart from its modules.

    "" is the config itself.
    """
    found = {name: declared for name, declared in SECTIONS.items() if name in config}
    if "task" not in config:
        return {"": PretrainingRun, **found, "data": Data}
    check_value(fields_of(Task)["name"], config.task.get("name"), "config.task.name")
    data = catalog.load("tasks", config.task.name, "dataset").DataFields
    task = catalog.load("tasks", config.task.name, "head").Task
    return {"": FineTuningRun, **found, "data": data, "task": task}
