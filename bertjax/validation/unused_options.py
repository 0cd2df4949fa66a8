"""Refuse options on the command line that have no effect with the value of another option.

A config file may have both, such as phases and one length. On the command line an option is
expected to have an effect: an override or a flag that is not read is an error.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertjax import catalog
from bertjax.constraints import fields_of, format_value
from bertjax.errors import UserError

if TYPE_CHECKING:
    from ml_collections import ConfigDict


@dataclasses.dataclass(frozen=True)
class UnusedOptions:
    """Options that have no effect with some values of another option.

    Attributes:
      options: Their names, which may be patterns with `*`.
      other: The name of the other option; where it is absent, they have an effect.
      when: Value of the other option -> whether they have no effect.
      expected: The values of the other option with which they have an effect, in messages.
      remedy: What the user can do, in messages.
    """

    options: tuple[str, ...]
    other: str
    when: Callable[[Any], bool]
    expected: str
    remedy: str


_TOKENIZER_TRAINING = (
    *("tokenizer.kind", "tokenizer.vocab_size", "tokenizer.lowercase", "tokenizer.strip_accents"),
    *("tokenizer.normalization", "tokenizer.character_coverage"),
)

CONFIG = (
    UnusedOptions(
        ("data.max_seq_length", "data.batch_size"),
        "data.phases",
        bool,
        "(), since every phase has its own",
        "set --config.data.phases='()', or change the phases",
    ),
    UnusedOptions(
        ("data.microbatches",),
        "data.phases",
        lambda phases: phases and all(len(phase) == 4 for phase in phases),
        "a phase without its own microbatches",
        "change the phases",
    ),
    UnusedOptions(
        _TOKENIZER_TRAINING,
        "tokenizer.path",
        bool,
        "'', since this tokenizer is already trained",
        "leave one of them out",
    ),
    UnusedOptions(
        (
            *_TOKENIZER_TRAINING,
            *("data.input", "data.text_format", "data.text_field", "data.filters"),
            *("data.validation_input", "data.validation_fraction"),
        ),
        "data.corpus",
        bool,
        "'', since this corpus is already prepared, with a tokenizer and held-out documents",
        "leave one of them out",
    ),
    UnusedOptions(
        (
            *_TOKENIZER_TRAINING,
            *("data.corpus", "data.input", "data.text_format", "data.text_field", "data.filters"),
            *("data.validation_input", "data.validation_fraction"),
        ),
        "data.mixture",
        bool,
        "(), since its corpora are already prepared, with a tokenizer and held-out documents",
        "leave one of them out",
    ),
    UnusedOptions(
        ("data.mixture_temperature",),
        "data.mixture",
        lambda mixture: not mixture,
        "several corpora",
        "set --config.data.mixture, or leave it out",
    ),
    UnusedOptions(
        ("data.validation_fraction",),
        "data.validation_input",
        bool,
        "(), since these texts are the held-out ones",
        "leave one of them out",
    ),
    UnusedOptions(
        ("data.corpus", "data.text_format", "data.text_field", "data.filters"),
        "data.format",
        lambda format: not catalog.load("data/formats", format).Format.reads_text,
        "a format with text",
        "pass images with --config.data.input",
    ),
    UnusedOptions(
        ("model.size",),
        "model.name",
        bool,
        "none, since it only names the model in its config file",
        "pass the size to the config file, as in configs/bert.py:large, or set the model's fields",
    ),
    UnusedOptions(
        ("objectives.*.hidden_act",),
        "model.name",
        lambda name: not getattr(catalog.load("models", name).Model, "head_transform", True),
        "a model whose masked language model has a transform before the output layer",
        "leave it out",
    ),
    UnusedOptions(
        ("optimizer.layerwise_decay", "model.*_dropout_prob"),
        "optimizer.freeze_encoder",
        bool,
        "False, since a frozen encoder is not updated and has no dropout",
        "leave one of them out",
    ),
    UnusedOptions(
        ("data.triples_per_entity",),
        "data.knowledge",
        lambda path: not path,
        "the path of a graph",
        "set --config.data.knowledge=FILE, or leave it out",
    ),
    UnusedOptions(
        ("task.temperature",),
        "task.loss_type",
        lambda name: name in ("cosine", "margin_mse"),
        "contrastive, cosent or kl, since a squared error has no temperature",
        "leave one of them out",
    ),
    UnusedOptions(
        ("num_train_steps", "optimizer.warmup_steps", "data.fingerprint", "init.*"),
        "task.name",
        bool,
        "a pretraining: num_train_epochs, optimizer.warmup_share and --init determine it here",
        "set these",
    ),
)
"""Rules for overrides of a config."""


def check_overrides(config: "ConfigDict", fields: Collection[str]) -> None:
    """Refuses overrides of a config that have no effect.

    Args:
      config: The config with all overrides applied.
      fields: Dotted names of the overridden fields.

    Raises:
      UserError: naming the first.
    """
    rules = (
        *CONFIG,
        *_of_other_plug_ins("optimizer.name"),
        *_of_other_plug_ins("optimizer.schedule"),
        *_fields_from_data(config),
    )
    names = {*fields, *(rule.other for rule in rules)}
    values = {name: _value(config, name) for name in names}
    check(rules, values, fields, "config.")


def _of_other_plug_ins(field: str) -> Iterator[UnusedOptions]:
    """Rules for the fields of optimizers or schedules that only some of them have."""
    from bertjax.validation import schema  # imports JAX, which some commands do not use

    classes = schema.PLUG_INS[field].every()
    for name in {name for declared in classes.values() for name in fields_of(declared)}:
        owners = [owner for owner, declared in classes.items() if name in fields_of(declared)]
        yield UnusedOptions(
            (f"optimizer.{name}",),
            field,
            lambda chosen, owners=owners: chosen not in owners,
            " or ".join(map(repr, owners)),
            f"set --config.{field}={owners[0]}, or leave it out",
        )


def _fields_from_data(config: "ConfigDict") -> Iterator[UnusedOptions]:
    """The rule for fields of a task whose values its dataset determines."""
    from bertjax.validation import schema

    if "task" in config:
        options = tuple(
            f"task.{name}" for name in schema.plug_in_class(config, "task.name").fields_from_data
        )
        yield UnusedOptions(
            options, "task.name", bool, "none, since they follow from the data", "leave it out"
        )


def check_flags(
    rules: Sequence[UnusedOptions],
    flags: Mapping[str, Any],
    defaults: Callable[[str], Any],
    overrides: Sequence[tuple[str, str]] = (),
) -> None:
    """Refuses flags and overrides of a command that have no effect.

    Args:
      rules: Rules of the command. Flags have their names, overrides field names after "config.".
      flags: The values of all flags, by name.
      defaults: Flag -> its default; a flag with another value was given by the user.
      overrides: Overrides given by the user.

    Raises:
      UserError: naming the first.
    """
    typed = {name: value for name, value in flags.items() if value != defaults(name)}
    typed |= {f"config.{field}": text for field, text in overrides}
    check(rules, {**typed, **flags}, typed, "--")


def check(
    rules: Sequence[UnusedOptions], values: Mapping[str, Any], typed: Collection[str], prefix: str
) -> None:
    """Refuses options without effect; an empty value or 0 is permitted.

    Args:
      rules: Conditions under which options have no effect.
      values: Values by option; None where there is none.
      typed: Options given by the user.
      prefix: Precedes the name in messages.

    Raises:
      UserError: naming the first option.
    """
    for rule in rules:
        other = values.get(rule.other)
        if other is None or not rule.when(other):
            continue
        for name in typed:
            matches = any(fnmatch.fnmatchcase(name, option) for option in rule.options)
            if matches and (values[name] or values[name] is False):
                raise UserError(
                    f"{prefix}{name} has no effect: got {format_value(values[name])} with "
                    f"{prefix}{rule.other}={format_value(other)}, expected {rule.expected}; "
                    f"{rule.remedy}"
                )


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        try:
            config = config[part]
        except (KeyError, TypeError):  # no such field, or a value that is not a section
            return None
    return config
