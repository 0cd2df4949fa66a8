"""The two kinds of config: pretraining, and fine-tuning on a task. Each needs fields of its own."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax.errors import UserError

_TASK = "task"
_SHOWN = 6

_FIELDS = (
    *("seed", "log_every", "max_skipped_in_a_row", "watchdog_minutes", "keep_checkpoints"),
    *("data.max_seq_length", "data.batch_size", "data.microbatches"),
    *("optimizer.name", "optimizer.learning_rate", "optimizer.schedule", "optimizer.power"),
    *("optimizer.end_learning_rate", "optimizer.weight_decay", "optimizer.max_grad_norm"),
    *("optimizer.adam_b1", "optimizer.adam_b2", "optimizer.adam_eps"),
    *("mesh.data", "mesh.fsdp", "mesh.tensor", "mesh.sequence", "mesh.rules"),
    *("mesh.attention_kernel", "mesh.shard_optimizer", "mesh.grad_reduce_in_bf16"),
)
"""What both kinds need."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a config is for.

    Attributes:
      name: In error messages.
      has_task: Whether it has a section `task`.
      fields: Dotted names of sections and fields that it must have.
      example: A config file of this kind.
      verb: The command that reads it.
    """

    name: str
    has_task: bool
    fields: tuple[str, ...]
    example: str
    verb: str

    def check(self, config: ConfigDict, spec: str) -> None:
        """Raises `UserError` unless the config of the file `spec` is of this kind and complete."""
        if (_TASK in config) != self.has_task:
            other = _other(self)
            found = "a" if other.has_task else "no"
            raise UserError(
                f"--config {spec}: got {other.name} config (it has {found} section {_TASK!r}), "
                f"expected {self.name} config such as {self.example}; run this one with "
                f"{other.verb}"
            )
        self.require(config, spec, self.fields)

    def require(self, config: ConfigDict, spec: str, fields: Sequence[str]) -> None:
        """Raises `UserError` unless the config of the file `spec` has these fields."""
        missing = [name for name in fields if not _has(config, name)]
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            raise UserError(
                f"--config {spec}: {self.name} config lacks {', '.join(missing[:_SHOWN])}{more}; "
                f"add them as in {self.example}"
            )


PRETRAINING = Kind(
    name="a pretraining",
    has_task=False,
    fields=(
        "objectives",
        *("model.name", "model.num_hidden_layers", "model.precision", "model.unroll"),
        *("num_train_steps", "checkpoint_every", "eval_every", "eval_examples"),
        *("keep_best", "best_metric", "best_mode"),
        *("data.phases", "data.format", "data.pair", "data.short_seq_prob", "data.input"),
        *("data.corpus", "data.cache", "data.text_format"),
        *("data.validation_input", "data.validation_fraction", "optimizer.warmup_steps"),
        *_FIELDS,
    ),
    example="configs/bert.py:tiny",
    verb="bertjax pretrain",
)

FINE_TUNING = Kind(
    name="a fine-tuning",
    has_task=True,
    fields=(
        *("task.name", "model", "num_train_epochs", "choose_epoch", "max_train_examples"),
        *("data.eval_batch_size", "data.padded_lengths", "data.batches_per_group"),
        *("optimizer.warmup_share", *_FIELDS),
    ),
    example="configs/glue.py:mrpc",
    verb="bertjax finetune",
)


def _other(kind: Kind) -> Kind:
    return PRETRAINING if kind.has_task else FINE_TUNING


def _has(config: ConfigDict, name: str) -> bool:
    section: Any = config
    for part in name.split("."):
        if not isinstance(section, ConfigDict) or part not in section:
            return False
        section = section[part]
    return True
