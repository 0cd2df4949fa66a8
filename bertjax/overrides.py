"""Override config fields from the command line: `--config.model.hidden_size=256`.

Every field that a section may have can be set, also one that the config file leaves at its default:
fields of the model, objectives, task head, optimizer and schedule are those of their modules. The
text is read as the declared type of the field, and the value is checked by its constraint.

`--config.objectives.NAME.weight=1.0` adds the objective `bertjax/objectives/NAME.py`, and
`--config.objectives.NAME=none` removes it. In a fine-tuning, `config.model` holds changes to the
pretrained model, and `none` cancels one.
"""

import ast
import contextlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from ml_collections import config_dict

from bertjax import catalog
from bertjax.constraints import check_value, violation
from bertjax.errors import UserError, nearest
from bertjax.validation import unused_options

ConfigDict = config_dict.ConfigDict

Override = tuple[str, str]
"""A dotted field and the text of its new value."""

_PREFIX = "--config."
_OTHER_LENGTHS = ("num_train_tokens", "num_train_epochs")
"""Lengths of a pretraining in place of `num_train_steps`."""
_BOOLEANS = {"true": True, "false": False}


def split_overrides(argv: list[str]) -> tuple[list[str], list[Override]]:
    """Separates `--config.x.y=value` and `--config.x.y value` from the other arguments."""
    rest, overrides = [], []
    words = iter(argv)
    for word in words:
        if not word.startswith(_PREFIX):
            rest.append(word)
            continue
        field, equals, value = word.removeprefix(_PREFIX).partition("=")
        if not equals:
            value = next(words, None)
        if value is None or (not equals and value.startswith("--")):
            raise UserError(f"{word} requires a value, as in {word}=VALUE")
        overrides.append((field, value))
    return rest, overrides


def with_overrides(argv: list[str], changes: Mapping[str, Any]) -> list[str]:
    """Replaces or adds overrides in a command line.

    Args:
      argv: The arguments of a command.
      changes: Values by dotted field; `num_train_steps` also replaces tokens and epochs.
    """
    rest, overrides = split_overrides(argv)
    replaced = {*changes, *(_OTHER_LENGTHS if "num_train_steps" in changes else [])}
    kept = [(field, text) for field, text in overrides if field not in replaced]
    new = [(field, to_text(value)) for field, value in changes.items()]
    return [*rest, *(f"{_PREFIX}{field}={text}" for field, text in [*kept, *new])]


def to_text(value: Any) -> str:
    """Formats a value as the text of an override."""
    return value if isinstance(value, str) else repr(value)


def split_at_dashes(argv: list[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments of a command from those after the first `--`, which it passes on."""
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], argv[place + 1 :]


def print_note(text: str) -> None:
    """Prints a note on standard error."""
    print(f"note: {text}", file=sys.stderr)


def apply_overrides(
    config: ConfigDict, overrides: Iterable[Override], log: Callable[[str], None] = print_note
) -> None:
    """Sets fields of a config in place.

    Args:
      config: The config.
      overrides: Dotted fields and the texts of their values.
      log: Logs a note if a warmup is scaled to a shortened run.

    Raises:
      UserError: there is no such field (the nearest is named), the value does not fit its declared
        type, or no run of this config reads the field.
    """
    from bertjax.validation import schema  # imports JAX, whose environment commands set first

    overrides = list(overrides)
    before = config.get("num_train_steps")
    with config.unlocked(), config.ignore_type():
        # Names of plug-ins first: these decide which other fields there are.
        for field, text in sorted(overrides, key=lambda item: item[0] not in schema.PLUG_INS):
            _set(config, field, text)
        given = dict(overrides)
        if "task" not in config:
            given = _one_length(config, given)
        if "num_train_steps" in given and "optimizer.warmup_steps" not in given:
            scale_warmup(config, before, log)
    unused_options.check_overrides(config, given)


def _one_length(config: ConfigDict, overrides: Mapping[str, str]) -> dict[str, str]:
    """Keeps one length of a pretraining, and converts tokens to steps.

    An override replaces the length that a config file sets.

    Raises:
      UserError: several overrides of the length.
    """
    given = [name for name in ("num_train_steps", *_OTHER_LENGTHS) if name in overrides]
    if len(given) > 1:
        values = " with ".join(f"{name}={overrides[name]}" for name in given)
        raise UserError(f"config: got {values}, expected one of them; leave the others out")
    for name in _OTHER_LENGTHS:
        if given and name not in given and name in config:
            del config[name]
    return _tokens_to_steps(config, overrides) if "num_train_tokens" in config else dict(overrides)


def _tokens_to_steps(config: ConfigDict, overrides: Mapping[str, str]) -> dict[str, str]:
    """Replaces `num_train_tokens` by `num_train_steps`, in the config and in overrides."""
    tokens, data = config.num_train_tokens, config.data
    check_value(_declared_type(config, "", "num_train_tokens"), tokens, "config.num_train_tokens")
    if data.phases:
        raise UserError(
            f"config.num_train_tokens: got {tokens:,} with {len(data.phases)} phases, which are "
            "counted in steps; set --config.data.phases='()'"
        )
    config.num_train_steps = max(round(tokens / (data.batch_size * data.max_seq_length)), 1)
    del config.num_train_tokens
    kept = {field: text for field, text in overrides.items() if field != "num_train_tokens"}
    return kept | {"num_train_steps": str(config.num_train_steps)}


def scale_warmup(config: ConfigDict, before: int | None, log: Callable[[str], None]) -> None:
    """Scales in place a warmup that is longer than a shortened run.

    Args:
      config: The config of the shortened run, unlocked.
      before: Steps of the run for which the warmup was set; None for a config without steps.
      log: Logs a note.
    """
    if not before or "warmup_steps" not in config.optimizer:
        return
    warmup, steps = config.optimizer.warmup_steps, config.num_train_steps
    if warmup > steps > 0:
        config.optimizer.warmup_steps = warmup * steps // before
        log(
            f"config.optimizer.warmup_steps: {warmup:,} of {before:,} steps became "
            f"{config.optimizer.warmup_steps:,} of {steps:,}"
        )


def _set(config: ConfigDict, field: str, text: str) -> None:
    section, _, name = field.rpartition(".")
    if section == "objectives" and text.lower() == "none":
        _require(config, "config", section)
        _require(config.objectives, "config.objectives", name)
        del config.objectives[name]
        return
    hint = _declared_type(config, section, name)
    try:
        value = _read(hint, text)
    except (ValueError, OverflowError):
        value = text  # `check_value` refuses it
    check_value(hint, value, f"config.{field}")
    _get_section(config, section)[name] = value


def _declared_type(config: ConfigDict, section: str, name: str) -> Any:
    """The declared type of a field."""
    from bertjax.validation import schema

    field = f"{section}.{name}" if section else name
    if field in schema.PLUG_INS and section in config:
        return schema.PLUG_INS[field].hint
    values = _get_section(config, section)
    if isinstance(values.get(name), ConfigDict):
        fields = ", ".join(schema.hints(config, field) or values[name])
        raise UserError(f"config.{field} is a section; set one of its fields: {fields}")
    hints = schema.hints(config, section)
    if name not in hints:
        if new := catalog.RENAMED_FIELDS.get(field):
            raise UserError(f"config.{field} is now {new}")
        known = [*hints, *(name for name in values if isinstance(values[name], ConfigDict))]
        where = f"config.{section}" if section else "config"
        raise UserError(f"no field {name!r} in {where}: {nearest(name, known)}")
    return hints[name]


def _get_section(config: ConfigDict, section: str) -> ConfigDict:
    """A section of a config; an objective that the config does not have is added."""
    found, path = config, "config"
    for name in filter(None, section.split(".")):
        if path == "config.objectives" and name not in found:
            known = catalog.names("objectives")
            if name not in known:
                raise UserError(f"no objective {name!r} for {path}: {nearest(name, known)}")
            found[name] = ConfigDict()
        _require(found, path, name)
        found, path = found[name], f"{path}.{name}"
    if not isinstance(found, ConfigDict):
        raise UserError(f"{path} is a value, not a section: it has no fields")
    return found


def _require(section: Any, path: str, name: str) -> None:
    if not isinstance(section, ConfigDict):
        raise UserError(f"{path} is a value, not a section: it has no field {name!r}")
    if name not in section:
        raise UserError(f"no field {name!r} in {path}: {nearest(name, section.keys())}")


def _read(hint: Any, text: str) -> Any:
    """Reads a text as a declared type.

    Raises:
      ValueError: the text is of another type.
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _read(parts[0], text)
    if origin in (typing.Union, types.UnionType):
        return _read_union(parts, text)
    if tuple in (hint, origin):
        return _convert(hint, _sequence(text))
    return _READERS.get(hint, str)(text)


def _read_union(hints: Sequence[Any], text: str) -> Any:
    """Reads a text as the first type that it fits."""
    if types.NoneType in hints and text.lower() == "none":
        return None
    for hint in (hint for hint in hints if hint is not types.NoneType):
        with contextlib.suppress(ValueError, OverflowError):
            value = _read(hint, text)
            if violation(hint, value) is None:
                return value
    raise ValueError(text)


def _convert(hint: Any, value: Any) -> Any:
    """Converts an element of a sequence to its declared type, which its constraint checks later."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _convert(parts[0], value)
    if origin is tuple and isinstance(value, tuple | list):
        if parts[-1] is Ellipsis:
            parts = parts[:1] * len(value)
        if len(parts) == len(value):
            return tuple(map(_convert, parts, value))
    if isinstance(value, list):
        return tuple(value)
    return float(value) if hint is float and type(value) is int else value


def _parse_bool(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def _integer(text: str) -> int:
    """Reads 1000, 1_000 and 1e3."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _literal(text: str) -> Any:
    """Reads a Python literal, with `true`, `false` and `none` as well; any other text is text."""
    if text.lower() == "none":
        return None
    if text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _sequence(text: str) -> tuple[Any, ...]:
    """Reads `(1, 2)`, `[1, 2]`, `1,2` and `(data, fsdp)`."""
    value = _literal(text)
    if isinstance(value, str):
        value = [_literal(item.strip()) for item in text.strip("()[] ").split(",") if item.strip()]
    if not isinstance(value, tuple | list):
        raise ValueError(text)
    return tuple(value)


_READERS: dict[Any, Callable[[str], Any]] = {bool: _parse_bool, int: _integer, float: float}
