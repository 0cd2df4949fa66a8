"""Load run configs from Python files, apply command-line overrides, store them as JSON.

A config file defines `get_config()`, or `get_config(argument)` for `configs/bert.py:tiny`, and
returns an `ml_collections.ConfigDict` of plain values: numbers, strings, booleans, None, tuples
and sections. After loading, every sequence is a tuple and the config is locked. The `config.json`
of a run is a config file too and loads as the same config.

A value may be a reference to another one (`config.get_ref("num_train_steps") // 10`); references
are resolved after the overrides.

There are two kinds of configs, pretraining and fine-tuning, each with required fields.
"""

import dataclasses
import fnmatch
import hashlib
import importlib.util
import inspect
import json
import pathlib
import reprlib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict, config_dict

from bertjax import catalog
from bertjax.errors import UserError
from bertjax.overrides import Override, apply_overrides, print_note, split_overrides, to_text

__all__ = [
    "apply_overrides",
    "check_type",
    "differences",
    "fingerprint",
    "from_json",
    "load_config",
    "load_runs",
    "replace_fields",
    "split_overrides",
    "to_json",
]

_TASK = "task"
_MAX_SHOWN = 6

_FIELDS = (
    *("seed", "log_every", "max_skipped_in_a_row", "watchdog_minutes", "keep_checkpoints"),
    *("data.max_seq_length", "data.batch_size", "data.microbatches"),
    *("optimizer.name", "optimizer.learning_rate", "optimizer.schedule"),
    "optimizer.max_grad_norm",
    *("mesh.data", "mesh.fsdp", "mesh.tensor", "mesh.sequence", "mesh.rules"),
    *("mesh.attention_kernel", "mesh.shard_optimizer", "mesh.grad_reduce_in_bf16"),
)
"""Required by both kinds."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of config: pretraining or fine-tuning.

    Attributes:
      name: Name in error messages.
      has_task: Whether it has a section `task`.
      fields: Dotted names of required sections and fields.
      example: A config file of this kind.
      verb: The command that reads it.
    """

    name: str
    has_task: bool
    fields: tuple[str, ...]
    example: str
    verb: str

    def check(self, config: ConfigDict, spec: str) -> None:
        """Raises `UserError` if the config of `spec` is of the other kind or incomplete."""
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
            more = f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
            raise UserError(
                f"--config {spec}: {self.name} config lacks {', '.join(missing[:_MAX_SHOWN])}{more}"
                f"; add them as in {self.example}"
            )


PRETRAINING = Kind(
    name="a pretraining",
    has_task=False,
    fields=(
        "objectives",
        "model.name",
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


def load_config(
    spec: str,
    overrides: Mapping[str, Any] | Iterable[Override] = (),
    kind: Kind | None = None,
    log: Callable[[str], None] = print_note,
) -> ConfigDict:
    """Loads a config file, applies overrides and locks the result.

    >>> config = bertjax.load_config("bert:tiny", {"optimizer.learning_rate": 3e-4})
    >>> config.model.hidden_size
    128

    Args:
      spec: Name of a config of bertjax, such as "bert", or path of a Python file, each with the
        argument of its `get_config` after a colon, as in "bert:base"; or path of a run's
        `config.json`.
      overrides: Values by dotted field; or (field, text of the value) pairs, as `split_overrides`
        returns them.
      kind: The required kind; None for either.
      log: Logs a note if a warmup is scaled to a shortened run; by default on standard error.

    Raises:
      UserError: there is no such file, it does not define a config, the config is of the other kind
        or incomplete, or an override is invalid.
    """
    path, argument = catalog.find_config_file(spec, (".py", ".json"))
    if path.suffix == ".json":
        config = _config_of_run(path, argument)
    else:
        with catalog.importable(path):
            config = _call(_function(path, "get_config"), path, argument)
    if not isinstance(config, ConfigDict):
        found = type(config).__name__
        raise UserError(f"{path}: get_config() returned {found}, expected a ConfigDict")
    if kind is not None:
        kind.check(config, spec)
    if isinstance(overrides, Mapping):
        overrides = [(field, to_text(value)) for field, value in overrides.items()]
    apply_overrides(config, overrides, log)
    try:
        return from_json(config.to_json(json_encoder_cls=_PlainEncoder))
    except TypeError as error:
        raise UserError(f"{path}: expected plain values only: {error}") from None


def check_type(config: Any) -> None:
    """Raises `UserError` for the name of a config, or anything else, in place of a config."""
    if not isinstance(config, ConfigDict):
        argument = repr(config) if isinstance(config, str) else "..."
        raise UserError(
            f"config: got {reprlib.repr(config)}, expected a config; pass "
            f"bertjax.load_config({argument})"
        )


def load_runs(spec: str) -> Any:
    """Calls `get_runs()` of a sweep file, with the argument after a colon if it has a parameter.

    Raises:
      UserError: there is no such file or function, or the function fails.
    """
    path, argument = catalog.find_config_file(spec, (".py",))
    with catalog.importable(path):
        get_runs = _function(path, "get_runs")
        has_parameter = bool(inspect.signature(get_runs).parameters)
        return _call(get_runs, path, argument if has_parameter else None)


def to_json(config: ConfigDict) -> str:
    """Serialises a config as indented JSON, in the order of its fields."""
    return config.to_json(json_encoder_cls=_PlainEncoder, indent=2)


def from_json(text: str) -> ConfigDict:
    """Parses the output of `to_json`: sequences become tuples, the result is locked."""
    return _from_plain(json.loads(text)).lock()


def replace_fields(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
    """Returns a locked copy with other values of some dotted fields."""
    copy = from_json(to_json(config))
    with copy.unlocked():
        copy.update_from_flattened_dict(changes)
    return copy


def fingerprint(config: ConfigDict, ignoring: Iterable[str] = ()) -> str:
    """SHA-256 of a config, independent of the order of its fields.

    The order of `config.objectives` matters, since objectives process a batch in that order. Fields
    that are off (false, 0, empty) do not: an older version may not have had them.

    Args:
      config: The config.
      ignoring: Dotted fields, sections or patterns to leave out, such as `log_every`, `keep_*`.
    """
    kept = {
        name: value
        for name, value in flatten(config).items()
        if (value or isinstance(value, dict)) and not _is_in_sections(name, tuple(ignoring))
    }
    content = {"fields": kept, "order": _order(config)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def differences(a: ConfigDict, b: ConfigDict) -> list[str]:
    """Lists the fields in which two configs differ, as `config.x.y: 1 became 2` lines."""
    old, new = flatten(a), flatten(b)
    lines = [
        f"config.{name}: {_format_value(old, name)} became {_format_value(new, name)}"
        for name in [*old, *(name for name in new if name not in old)]
        if name not in old or name not in new or old[name] != new[name]
    ]
    if set(_order(a)) == set(_order(b)) and _order(a) != _order(b):
        lines.append(f"config.objectives: order {_order(a)} became {_order(b)}")
    return lines


def flatten(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    """All fields by dotted name; an empty section is an empty dict."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict) and len(value):
            fields |= flatten(value, f"{prefix}{name}.")
        else:
            fields[prefix + name] = {} if isinstance(value, ConfigDict) else value
    return fields


def _order(config: ConfigDict) -> list[str]:
    return list(config.objectives) if "objectives" in config else []


def _is_in_sections(name: str, sections: tuple[str, ...]) -> bool:
    return any(
        fnmatch.fnmatchcase(name, pattern)
        for section in sections
        for pattern in (section, f"{section}.*")
    )


def _format_value(fields: dict[str, Any], name: str) -> str:
    return repr(fields[name]) if name in fields else "(absent)"


def _from_plain(value: Any) -> Any:
    """Converts parsed JSON to sections, which keep their order, and tuples."""
    if isinstance(value, list):
        return tuple(map(_from_plain, value))
    if not isinstance(value, dict):
        return value
    section = ConfigDict(sort_keys=False)
    for name, item in value.items():
        section[name] = _from_plain(item)
    return section


class _PlainEncoder(config_dict.CustomJSONEncoder):
    """Rejects types, which the encoder of ml_collections would convert to strings."""

    def default(self, obj: Any) -> Any:
        if isinstance(obj, type):
            raise TypeError(f"{obj.__name__} is a type; write its name as a string")
        return super().default(obj)


def _config_of_run(path: pathlib.Path, argument: str | None) -> ConfigDict:
    """Reads the config that a run wrote into its folder."""
    if argument is not None:
        raise UserError(f"{path} takes no argument; got {argument!r}")
    try:
        return _from_plain(catalog.rename_fields(json.loads(path.read_text(encoding="utf-8"))))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}; pass another config") from None


_MEANING = {"get_config": "a config file", "get_runs": "a sweep file"}


def _function(path: pathlib.Path, name: str) -> Callable[..., Any]:
    module_spec = importlib.util.spec_from_file_location(f"{path.stem}_config", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path} cannot be read as a config: {_where(error, path)}") from error
    if not callable(getattr(module, name, None)):
        raise UserError(f"{path} defines no {name}(); pass {_MEANING[name]}")
    return getattr(module, name)


def _call(function: Callable[..., Any], path: pathlib.Path, argument: str | None) -> Any:
    arguments = () if argument is None else (argument,)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise UserError(
            f"{path} takes no argument; got {argument!r}"
            if arguments
            else f"{path} requires an argument, as in {path}:NAME"
        ) from None
    try:
        return function(*arguments)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        called = f"{function.__name__}({'' if argument is None else repr(argument)})"
        raise UserError(f"{path}: {called} failed: {_where(error, path)}") from error


def _where(error: Exception, path: pathlib.Path) -> str:
    """Describes an error and the line of the config file that raised it."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = f"line {frames[-1].lineno}: " if frames else ""
    return f"{line}{type(error).__name__}: {error}"
