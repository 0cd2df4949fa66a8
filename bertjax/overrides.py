"""Override config fields from the command line: `--config.model.hidden_size=256`.

A value takes the type that the field has in the config, so that a slip is found before anything
is built. Only `config.objectives` is open: a name in it is a file of `bertjax/objectives/`, which
`--config.objectives.NAME.weight=1.0` adds and `--config.objectives.NAME=none` takes out. Beside a
task, `config.model` holds changes to the pretrained model, and `none` takes one of these back.
"""

import ast
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ml_collections import config_dict

from bertjax import catalog
from bertjax.errors import UserError, nearest
from bertjax.validation import unused_options

ConfigDict = config_dict.ConfigDict

Override = tuple[str, str]
"""A dotted field and the text of its new value."""

_PREFIX = "--config."
_TRUTH = {"true": True, "false": False}


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
    """A command line with other values of some fields, in place of those that it sets.

    Args:
      argv: The words of a command.
      changes: Values by dotted field.
    """
    rest, overrides = split_overrides(argv)
    kept = [(field, text) for field, text in overrides if field not in changes]
    new = [(field, _text_of(value)) for field, value in changes.items()]
    return [*rest, *(f"{_PREFIX}{field}={text}" for field, text in [*kept, *new])]


def _text_of(value: Any) -> str:
    """The text that an override reads as this value."""
    return value if isinstance(value, str) else repr(value)


def split_at_dashes(argv: list[str]) -> tuple[list[str], list[str]]:
    """Own words of a command, and those behind the first --, which it hands on."""
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], argv[place + 1 :]


def apply_overrides(config: ConfigDict, overrides: Iterable[Override]) -> None:
    """Sets fields of a config in place, each to a value of the type that it has.

    Raises:
      UserError: there is no such field (the nearest is named), the value has another type, or no
        run of this config reads the field.
    """
    overrides, added = list(overrides), set()
    with config.unlocked():
        for field, text in overrides:
            if not _change_objectives(config, field, text, added):
                _set(config, field, text)
    unused_options.check_overrides(config, dict(overrides))


def _change_objectives(config: ConfigDict, field: str, text: str, added: set[str]) -> bool:
    """Adds an objective or takes one out; False where the field is one like any other."""
    match = re.fullmatch(r"objectives\.(\w+)(?:\.(\w+))?", field)
    if not match or "objectives" not in config:
        return False
    name, option = match.groups()
    if option is None and name in config.objectives and text.lower() == "none":
        del config.objectives[name]
        return True
    if option is None or (name in config.objectives and name not in added):
        return False
    known = catalog.names("objectives")
    if name not in known:
        raise UserError(f"no objective {name!r} for config.{field}: {nearest(name, known)}")
    if name not in config.objectives:
        config.objectives[name] = ConfigDict()
        added.add(name)
    config.objectives[name][option] = _literal(text)
    return True


def _set(config: ConfigDict, field: str, text: str) -> None:
    *parents, name = field.split(".")
    section, path = config, "config"
    for parent in parents:
        _require(section, path, parent)
        section, path = section[parent], f"{path}.{parent}"
    _require(section, path, name)
    path = f"{path}.{name}"
    if isinstance(section[name], ConfigDict):
        fields = ", ".join(section[name].keys())
        raise UserError(f"{path} is a section; set one of its fields: {fields}")
    if parents == ["model"] and "task" in config and text.lower() == "none":
        section[name] = None
    else:
        section[name] = _typed(section[name], section.get_type(name), path, text)


def _require(section: Any, path: str, name: str) -> None:
    if not isinstance(section, ConfigDict):
        raise UserError(f"{path} is a value, not a section: it has no field {name!r}")
    if name not in section:
        raise UserError(f"no field {name!r} in {path}: {nearest(name, section.keys())}")


def _typed(current: Any, kind: type, path: str, text: str) -> Any:
    """Reads a value as the type of its field; a field that may be None also takes `none`."""
    if current is None and text.lower() == "none":
        return None
    read, wanted = _READERS.get(kind, (_literal, "a value"))
    if kind in (tuple, list):
        wanted = f"a tuple like {tuple(current or ())}"
    try:
        return read(text) if kind not in (tuple, list) else _alike(read(text), current)
    except (ValueError, OverflowError):
        raise UserError(f"{path} requires {wanted}, got {text!r}") from None


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError(text)
    return _TRUTH[text.lower()]


def _integer(text: str) -> int:
    """Reads 1000, 1_000 and 1e3."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> float:
    number = float(text)
    if math.isnan(number):
        raise ValueError(text)
    return number


def _literal(text: str) -> Any:
    """Reads a Python literal, with `true`, `false` and `none` as well; any other text is text."""
    if text.lower() == "none":
        return None
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
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


def _alike(value: Any, example: Any) -> Any:
    """Checks a value in a sequence against its example and returns it as that type."""
    if isinstance(example, tuple | list) and isinstance(value, tuple | list):
        if len(value) == len(example):
            return tuple(map(_alike, value, example))
        if len({type(item) for item in example}) == 1:
            return tuple(_alike(item, example[0]) for item in value)
        return tuple(value)
    if isinstance(example, float) and type(value) is int:
        return float(value)
    if example is not None and type(value) is not type(example):
        raise ValueError(value)
    return value


_READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: (_truth, "true or false"),
    int: (_integer, "int"),
    float: (_number, "float"),
    str: (str, "str"),
    tuple: (_sequence, "a tuple"),
    list: (_sequence, "a tuple"),
}
