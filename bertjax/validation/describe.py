"""Describe the fields of a config: value and meaning, for `--print_config`."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bertjax.constraints import fields_of
from bertjax.validation import schema

_WIDTH = 100
_INDENT = " " * 6


def lines(config: ConfigDict) -> Iterator[str]:
    """Yields every field of every section: `--config.NAME=VALUE`, then its meaning.

    Fields that a config leaves out have the defaults of the class that declares them.
    """
    sections = [name for name, value in config.items() if isinstance(value, ConfigDict)]
    names = config.objectives if "objectives" in config else ()
    objectives = [f"objectives.{name}" for name in names]
    for section in ["", *(name for name in sections if name != "objectives"), *objectives]:
        yield from _section(config, section)


def _section(config: ConfigDict, section: str) -> Iterator[str]:
    values: Any = config
    for part in filter(None, section.split(".")):
        values = values[part]
    classes = schema.declarations(config, section) if section != schema.WRITTEN_BY_RUN else ()
    meanings = _other_meanings(section)
    found = {n: v for n, v in values.items() if not isinstance(v, ConfigDict)}
    for declared in classes:
        meanings |= attribute_help(declared)
        # A fine-tuning's config.model holds changes only, and any model may be the pretrained one.
        if not ("task" in config and section in schema.CHANGES):
            found = {**found, **{n: v for n, v in _defaults(declared).items() if n not in found}}
    if not section and "task" not in config and "num_train_epochs" in config:
        # The value of the config file, which the run replaces by the steps of the epochs.
        found.pop("num_train_steps", None)
    yield f"config.{section}" if section else "config"
    prefix = f"{section}." if section else ""
    for name, value in found.items():
        yield f"  --config.{prefix}{name}={value!r}"
        if name in meanings:
            yield textwrap.fill(
                meanings[name], _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
            )
    yield ""


def _other_meanings(section: str) -> dict[str, str]:
    """Returns the meanings of fields of other optimizers and schedules, which have no effect."""
    found: dict[str, str] = {}
    if section == "optimizer":
        for field in ("optimizer.name", "optimizer.schedule"):
            for declared in schema.PLUG_INS[field].every().values():
                found |= attribute_help(declared)
    return found


def _defaults(declared: type) -> dict[str, Any]:
    """Returns the default values of the fields of a Linen module, dataclass or section."""
    names = fields_of(declared)
    if not dataclasses.is_dataclass(declared):
        return {name: getattr(declared, name) for name in names if hasattr(declared, name)}
    defaults = {field.name: field.default for field in dataclasses.fields(declared)}
    return {name: defaults[name] for name in names if defaults[name] is not dataclasses.MISSING}


def attribute_help(declared: type) -> dict[str, str]:
    """Returns the meanings of a class's fields, from the "Attributes:" of its docstring.

    Fields that a base class declares are in the docstring of that class.
    """
    found: dict[str, str] = {}
    for base in reversed(declared.__mro__):
        docstring = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        _, _, text = docstring.partition("Attributes:\n")
        section = re.split(r"\n(?=\S)", text)[0]
        for name, meaning in re.findall(r"^  (\w+): (.*(?:\n    .*)*)", section, re.MULTILINE):
            found[name] = " ".join(meaning.split())
    return found
