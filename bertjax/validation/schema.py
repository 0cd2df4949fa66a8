"""The fields of a config and their allowed values.

Fields of plug-ins are declared by their files, those of a task's data by `tasks/NAME/dataset.py`;
all others are declared here. `validation/config.py` checks a config against all of them.
"""

import dataclasses
from typing import Annotated, Any

from ml_collections import ConfigDict

from bertjax import catalog
from bertjax.constraints import (
    AnyText,
    LearningRate,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    OneOf,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    Seed,
    Share,
    ShareBelowOne,
    check_value,
    fields_of,
    integer,
    share,
)
from bertjax.corpus.filters import FilterName
from bertjax.corpus.mixture import MixtureEntries
from bertjax.data.format import PAIRS
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.dense import PRECISIONS
from bertjax.tokenizers import tokenizer
from bertjax.tokenizers.definitions import UNICODE_FORMS
from bertjax.train import averaging, epochs, optimizer, schedule, tracking
from bertjax.train.checkpoint import folder
from bertjax.train.sharding import MeshRules, MeshSize

FORMATS = tuple(catalog.names("data/formats"))
"""Values of `config.data.format`."""


class Run:
    """Top-level fields that pretraining and fine-tuning share.

    Attributes:
      seed: Seed of parameters, dropout, masks and the order of examples.
      log_every: Steps between reports.
      max_skipped_in_a_row: Consecutive skipped updates after which the run stops.
      watchdog_minutes: Time without a step after which all threads' stacks are printed; 0: never.
      tensorboard: Whether the metrics are also written as event files, in `tensorboard/`.
      trackers: Experiment trackers that also receive the metrics: wandb, mlflow.
    """

    seed: Seed
    log_every: PositiveInt
    max_skipped_in_a_row: PositiveInt
    watchdog_minutes: NonNegativeFloat
    tensorboard: bool = False
    trackers: tuple[Annotated[str, tracking.TrackerName()], ...] = ()


class PretrainingRun(Run):
    """Top-level fields of a pretraining.

    Attributes:
      num_train_steps: Optimizer steps of the whole run.
      num_train_tokens: In place of steps: tokens of the whole run, padding included.
      num_train_epochs: In place of steps: epochs of the corpus, without phases or mixture.
      eval_every: Steps between evaluations; 0 evaluates at the end alone.
      eval_examples: Held-out examples of an evaluation; 0 for all.
      checkpoint_every: Steps between checkpoints; 0 saves at the end alone.
      keep_checkpoints: Number of the newest checkpoints to keep.
      keep_best: Number of the best checkpoints by `best_metric` to keep.
      best_metric: One of `held_out_metrics`.
      best_mode: "min" or "max": which values of `best_metric` are better.
      budget_seconds: Seconds of training over all starts, which the learning rate follows in place
        of the steps; `num_train_steps` is the maximum then. 0 for none.
    """

    num_train_steps: PositiveInt
    num_train_tokens: PositiveInt
    num_train_epochs: PositiveFloat
    eval_every: Annotated[int, integer(0, meaning="0 evaluates at the end alone")]
    eval_examples: Annotated[int, integer(0, meaning="0 uses all")]
    checkpoint_every: Annotated[int, integer(0, meaning="0 saves at the end alone")]
    keep_checkpoints: PositiveInt
    keep_best: NonNegativeInt
    best_metric: AnyText
    best_mode: Annotated[str, OneOf(folder.DIRECTIONS)]
    budget_seconds: NonNegativeFloat = 0.0


class FineTuningRun(Run):
    """Top-level fields of a fine-tuning.

    Attributes:
      num_train_epochs: Epochs of each seed.
      choose_epoch: The epoch whose scores are reported.
      max_train_examples: Number of training examples; 0 for all.
      keep_checkpoints: Whether to keep the checkpoints of finished seeds.
      checkpoint_every: Steps between checkpoints, in addition to one after each epoch; 0 for none.
      num_train_steps: Written by the run.
      early_stopping_patience: Epochs without a better dev score after which a seed ends; 0: never.
    """

    num_train_epochs: PositiveInt
    choose_epoch: Annotated[str, OneOf(epochs.RULES)]
    max_train_examples: Annotated[int, integer(0, meaning="0 uses all")]
    keep_checkpoints: bool
    num_train_steps: PositiveInt
    checkpoint_every: Annotated[int, integer(0, meaning="0 saves after each epoch alone")] = 0
    early_stopping_patience: Annotated[int, integer(0, meaning="0 trains all epochs")] = 0

    relations = epochs.RELATIONS


class Tokenizer:
    """`config.tokenizer`: see `tokenizers/tokenizer.py`.

    Attributes:
      path: Folder of a trained tokenizer; "" trains one with the other fields.
      kind: Kind of tokenizer, as of `bertjax tokenizer train`.
      vocab_size: Size of the vocabulary, special tokens included.
      lowercase: Whether text is lowercased; None for the default of the kind.
      strip_accents: Whether accents are removed; None for the default of the kind.
      normalization: Unicode normalization; None for that of the kind.
      character_coverage: Fraction of the text that the alphabet covers; None for the default.
    """

    path: AnyText
    kind: Annotated[str, OneOf(tokenizer.KINDS)]
    vocab_size: PositiveInt
    lowercase: bool | None
    strip_accents: bool | None = None
    normalization: Annotated[str, OneOf(UNICODE_FORMS)] | None = None
    character_coverage: PositiveShare | None = None


class Data:
    """`config.data` of a pretraining.

    Attributes:
      corpus: Folder of a prepared corpus; "" prepares `input` on the first start.
      input: Globs of files, folders of datasets, "python-docs" or "tfds:NAME:SPLIT".
      text_format: Format of the files of `input`; "auto" detects it.
      text_field: Field of JSON lines, column of a table or feature of tfds:NAME:SPLIT with the
        text; "" for "text".
      filters: Documents of `input` to drop: "gopher", "duplicates", "min_characters=200" ..., as
        of `bertjax prepare --filter`.
      mixture: ((NAME, PATH of a corpus, share of the tokens), ...) in place of `corpus`; the share
        may be a tuple, one for each phase, and is left out for that of the corpus's tokens.
      mixture_temperature: T replaces shares w by w^(1/T), normalised; None keeps them.
      validation_input: Globs of held-out text.
      validation_fraction: Share of the documents of `input` that is held out instead.
      cache: Folder of prepared corpora; "" for ~/.cache/bertjax.
      format: Example format, a file of `data/formats/`.
      pair: Negative examples of segment-pair: "next" takes the second segment from another
        document, "order" swaps the segments.
      max_seq_length: Length L of an example in tokens.
      short_seq_prob: Share of shorter examples; None for 0.1 with segment-pair, else 0.
      batch_size: Examples of a step, over all devices.
      microbatches: Parts of a batch whose gradients are accumulated.
      phases: ((steps, length, batch size), ...) in place of `max_seq_length` and `batch_size`; a
        fourth number is the phase's `microbatches`.
    """

    corpus: AnyText
    input: tuple[AnyText, ...]
    text_format: Annotated[str, OneOf(["auto", *catalog.names("corpus/formats")])]
    text_field: AnyText
    filters: tuple[Annotated[str, FilterName()], ...]
    mixture: Annotated[tuple, MixtureEntries()]
    mixture_temperature: PositiveFloat | None
    validation_input: tuple[AnyText, ...]
    validation_fraction: ShareBelowOne
    cache: AnyText
    format: Annotated[str, OneOf(FORMATS)]
    pair: Annotated[str, OneOf(PAIRS)]
    max_seq_length: PositiveInt
    short_seq_prob: Share | None
    batch_size: PositiveInt
    microbatches: PositiveInt
    phases: tuple[tuple[PositiveInt, ...], ...]


class Mesh:
    """`config.mesh`.

    Attributes:
      data: Devices along the data axis; -1 for all remaining devices, on at most one axis.
      fsdp: Devices over which parameters and optimizer state are sharded.
      tensor: Devices over which heads and feed-forward units are sharded.
      sequence: Devices over which positions are sharded.
      rules: Sharding rules, (array axis, mesh axis), before those of `train/sharding.py`.
      shard_optimizer: Shard the optimizer's state over `data` as well (ZeRO, stage 1).
      grad_reduce_in_bf16: All-reduce gradients over `data` in bfloat16: half of the bytes.
      attention_kernel: "splash" or "pallas" (TPUs), "cudnn" (GPUs), "xla" (none); "": the default.
    """

    data: Annotated[int, MeshSize()]
    fsdp: Annotated[int, MeshSize()]
    tensor: Annotated[int, MeshSize()]
    sequence: Annotated[int, MeshSize()]
    rules: Annotated[tuple, MeshRules()]
    shard_optimizer: bool
    grad_reduce_in_bf16: bool
    attention_kernel: KernelName


@dataclasses.dataclass(frozen=True)
class PlugIn:
    """A field whose value names a file of a folder; a class there declares fields of the section.

    Attributes:
      folder: A folder of `bertjax/`.
      attribute: The class.
      part: A module of each subfolder; None for the modules of the folder.
    """

    folder: str
    attribute: str
    part: str | None = None

    @property
    def hint(self) -> Any:
        """The type of the field."""
        return Annotated[str, OneOf(catalog.names(self.folder, self.part))]

    def load(self, name: str) -> type:
        """Imports the class of a name."""
        return getattr(catalog.load(self.folder, name, self.part), self.attribute)

    def every(self) -> dict[str, type]:
        """The classes of all names."""
        return {name: self.load(name) for name in catalog.names(self.folder, self.part)}


PLUG_INS = {
    "model.name": PlugIn("models", "Model"),
    "task.name": PlugIn("tasks", "Task", "head"),
    "optimizer.name": PlugIn(optimizer.FOLDER, "Optimizer"),
    "optimizer.schedule": PlugIn(schedule.FOLDER, "Schedule"),
}


class Optimizer:
    """Fields of `config.optimizer` that all optimizers and schedules share.

    Attributes:
      name: A file of `train/optimizers/`, which declares further fields.
      learning_rate: The peak.
      schedule: A file of `train/schedules/`, which declares further fields.
      warmup_steps: Warmup steps of a pretraining; in a fine-tuning, written by the run.
      restarts: Learning rate and warmup of each phase but the first.
      max_grad_norm: Gradients with a larger norm are scaled down to it; 0 for none.
      warmup_share: Warmup steps of a fine-tuning, as a share of its steps.
      layerwise_decay: Factor between the steps of a layer and those of the layer above.
      frozen_layers: Number of layers, from the first, that are frozen together with the embeddings;
        0 freezes the embeddings alone, -1 nothing.
      freeze_encoder: Whether only the modules above the encoder are trained.
      ema_decay: Decay of a moving average of the weights, which evaluation, export and fine-tuning
        use (`train/averaging.py`); 0 for none.
      lawa_every: Steps between snapshots of the weights, whose mean is used likewise; 0 for none.
      lawa_window: Number of the latest snapshots that are averaged.
    """

    name: PLUG_INS["optimizer.name"].hint
    learning_rate: LearningRate
    schedule: PLUG_INS["optimizer.schedule"].hint
    warmup_steps: NonNegativeInt
    restarts: tuple[tuple[LearningRate, NonNegativeInt], ...]
    max_grad_norm: Annotated[float, Number(0.0, meaning="0 clips nothing")]
    warmup_share: Share
    layerwise_decay: PositiveShare = 1.0
    frozen_layers: Annotated[int, integer(-1, meaning="-1 freezes nothing")] = -1
    freeze_encoder: bool = False
    ema_decay: Annotated[float, share(open_high=True, meaning="0 averages nothing")] = 0.0
    lawa_every: Annotated[int, integer(0, meaning="0 averages nothing")] = 0
    lawa_window: Annotated[int, integer(0, meaning="0 averages nothing")] = 0

    relations = averaging.RELATIONS


class Model:
    """Fields of `config.model` that its module does not have, or has with fewer values.

    Attributes:
      name: A file of `models/`.
      size: The name of the model in its config file.
      precision: "auto" for the fastest on the device.
      unroll: 0 for the fastest on the device.
    """

    name: PLUG_INS["model.name"].hint
    size: AnyText
    precision: Annotated[str, OneOf((*PRECISIONS, "auto"))]
    unroll: Annotated[int, integer(0, meaning="0 chooses by device")]


class Task:
    """The field of `config.task` that its head does not have.

    Attributes:
      name: A folder of `tasks/`.
    """

    name: PLUG_INS["task.name"].hint


REQUIRED = ("model", "data", "optimizer", "mesh")
SHARED = {
    "tokenizer": Tokenizer,
    "data": Data,
    "mesh": Mesh,
    "model": Model,
    "model_preferences": Model,
    "optimizer": Optimizer,
    "task": Task,
}
"""Fields of a section that are the same for all names in it."""
CHANGES = ("model", "model_preferences")
"""Sections of a fine-tuning: changes to a pretrained model, which is not known yet."""
WRITTEN_BY_RUN = "init"
"""A section that runs which start from another model add to their config.json."""


def plug_in_class(config: ConfigDict, field: str) -> type:
    """The class that the value of a field of `PLUG_INS` stands for.

    Raises:
      UserError: there is no such file.
    """
    section, name = field.split(".")
    value = config[section].get(name)
    check_value(PLUG_INS[field].hint, value, f"config.{field}")
    return PLUG_INS[field].load(value)


def declarations(config: ConfigDict, section: str) -> tuple[type, ...]:
    """The classes that declare the fields of a section; "" is the config itself.

    Args:
      config: A config, of which only the names of plug-ins are read.
      section: Dotted name, such as "model" or "objectives.mlm".

    Raises:
      UserError: a name without a file.
    """
    finetunes = "task" in config
    folder, _, name = section.partition(".")
    if folder == "objectives" and name:
        return (catalog.load("objectives", name).Objective,)
    if not section:
        return (FineTuningRun if finetunes else PretrainingRun,)
    if finetunes and section == "data":
        plug_in_class(config, "task.name")
        return (catalog.load("tasks", config.task.name, "dataset").DataFields,)
    if finetunes and section in CHANGES:
        return (*PLUG_INS["model.name"].every().values(), Model)
    own = [plug_in_class(config, field) for field in PLUG_INS if field.startswith(f"{section}.")]
    return (*own, *([SHARED[section]] if section in SHARED else []))


def hints(config: ConfigDict, section: str) -> dict[str, Any]:
    """The types of all fields that a section may have.

    A field of `config.optimizer` may be another optimizer's or schedule's: it has no effect then.
    Changes to a pretrained model may be those of any model; None changes nothing.
    """
    classes = declarations(config, section)
    if "task" in config and section in CHANGES:
        return _optional_union(classes)
    found: dict[str, Any] = {}
    if section == "optimizer":
        for field in ("optimizer.name", "optimizer.schedule"):
            for declared in PLUG_INS[field].every().values():
                found |= fields_of(declared)
    for declared in classes:
        found |= fields_of(declared)
    return found


def _optional_union(classes: tuple[type, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for declared in classes:
        for name, hint in fields_of(declared).items():
            found[name] = found[name] | hint if name in found else hint | None
    return found


def plug_in_fields(config: ConfigDict, field: str) -> dict[str, Any]:
    """The values of a section that the class of a plug-in declares, such as "optimizer.name"."""
    values = config[field.partition(".")[0]]
    return {
        name: values[name] for name in fields_of(plug_in_class(config, field)) if name in values
    }
