"""Plan a sweep before its first run: its runs, and whether a folder belongs to it.

load     sweep file -> Sweep: every run's name, fields and steps, checked against the config
words    Sweep, Run -> the `bertjax` command that it is
record   Sweep -> what `config.json` of its folder says, from which `recorded` makes it again
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax import build
from bertjax import config as configs
from bertjax.config import PRETRAINING, load_config, load_runs
from bertjax.errors import UserError
from bertjax.io.files import read_json
from bertjax.overrides import Override
from bertjax.runs.workdir import FREE_FIELDS
from bertjax.sweeps import grid

INIT = "init"
"""Beside its fields, a run of fine-tuning may name the encoder that it begins with."""

_NOT_FIELDS = (grid.NAME, INIT)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a sweep.

    Attributes:
      name: Its own; its folder has it too.
      settings: The fields in which it differs from the config.
      steps: How many it takes, where its config says so; a fine-tuning counts epochs.
    """

    name: str
    settings: Mapping[str, Any]
    steps: int | None


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep file and the command line come to.

    Attributes:
      spec: The sweep file, and after a colon its argument.
      verb: `pretrain` or `finetune`.
      options: What the verb requires beside config and workdir: `init`, `data`, `seeds`.
      overrides: Of the command line, for all runs.
      config: What all runs begin with.
      runs: In the order in which they are begun.
      metric: By which runs are compared.
      mode: Its better values: `min` or `max`.
    """

    spec: str
    verb: str
    options: Mapping[str, Any]
    overrides: Sequence[Override]
    config: Mapping[str, Any]
    runs: tuple[Run, ...]
    metric: str
    mode: str


def load(spec: str, overrides: Sequence[Override], options: Mapping[str, Any]) -> Sweep:
    """Reads a sweep file and checks all of its runs.

    Raises:
      UserError: a run sets a field that the config has not, or a value that does not fit it; two
        runs have one name; an option is missing.
    """
    config = load_config(spec, overrides)
    points = _points(spec, load_runs(spec))
    verb = "finetune" if "task" in config else "pretrain"
    _check_options(spec, verb, options, points)
    try:
        names = grid.names(points)
    except UserError as error:
        raise UserError(f"{spec}: {error}") from None
    given = {field for field, _ in overrides}
    runs = [_run(spec, *named, overrides, given) for named in zip(names, points, strict=True)]
    metric, mode = _compared_by(config, spec)
    return Sweep(
        spec=spec,
        verb=verb,
        options={name: value for name, value in options.items() if value is not None},
        overrides=tuple(overrides),
        config=json.loads(configs.to_json(config)),
        runs=tuple(runs),
        metric=metric,
        mode=mode,
    )


def _points(spec: str, found: Any) -> list[dict[str, Any]]:
    points = list(found) if isinstance(found, Iterable) and not isinstance(found, Mapping) else None
    if not points or not all(isinstance(point, Mapping) for point in points):
        raise UserError(
            f"{spec}: get_runs() requires a list of runs, each a dict of fields and values, as "
            f"bertjax/sweeps/grid.py makes them; got {type(found).__name__} {str(found)[:60]!r}"
        )
    return [{name: _plain(value) for name, value in point.items()} for point in points]


def _plain(value: Any) -> Any:
    """Numbers of numpy are Python's own, lists are tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value.item() if hasattr(value, "item") else value


def _check_options(
    spec: str, verb: str, options: Mapping[str, Any], points: Sequence[Mapping[str, Any]]
) -> None:
    given = [name for name, value in options.items() if value is not None]
    if verb == "pretrain":
        if given:
            raise UserError(f"--{given[0]} is of fine-tuning; {spec} has no task: it pretrains")
        if any(INIT in point for point in points):
            raise UserError(f"{spec}: {INIT!r} is of fine-tuning; without a task it pretrains")
        return
    if options.get("data") is None:
        raise UserError(f"{spec} fine-tunes: --data requires the folder of its task")
    if options.get("init") is None and not all(INIT in point for point in points):
        raise UserError(
            f"{spec} fine-tunes: --init requires the run to begin with, or every run an {INIT!r}"
        )


def _run(
    spec: str,
    name: str,
    point: Mapping[str, Any],
    overrides: Sequence[Override],
    given: set[str],
) -> Run:
    settings = {field: value for field, value in point.items() if field != grid.NAME}
    fields = {field: text(value) for field, value in settings.items() if field not in _NOT_FIELDS}
    if both := given & fields.keys():
        raise UserError(f"--config.{min(both)} is set by {spec} for the run {name}: leave it out")
    try:
        config = load_config(spec, [*overrides, *fields.items()])
        build.check(config)
    except UserError as error:
        raise UserError(f"{spec}, run {name}: {error}") from None
    return Run(name, settings, config.num_train_steps if "num_train_steps" in config else None)


def text(value: Any) -> str:
    """A value as the command line has it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return grid.value_text(value) if isinstance(value, float) else str(value)


def _compared_by(config: ConfigDict, spec: str) -> tuple[str, str]:
    if "task" in config:
        return "dev/score", "max"
    PRETRAINING.require(config, spec, ("best_metric", "best_mode"))
    return config.best_metric, config.best_mode


def words(sweep: Sweep, run: Run, workdir: str) -> list[str]:
    """The words after `bertjax` of the command that a run is."""
    options = dict(sweep.options) | {
        name: value for name, value in run.settings.items() if name == INIT
    }
    fields = {field: text(value) for field, value in run.settings.items() if field != INIT}
    return [
        *(sweep.verb, "--config", sweep.spec),
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
        *("--workdir", workdir),
        *(f"--config.{field}={value}" for field, value in [*sweep.overrides, *fields.items()]),
    ]


FREE = (
    *(f"sweep.config.{field}" for field in (*FREE_FIELDS, "num_train_steps", "data.phases")),
    *("sweep.runs.*", "sweep.options.data", "sweep.options.seeds", "sweep.spec"),
    *("sweep.overrides", "sweep.metric", "sweep.mode"),
)
"""What may change between two starts of a sweep, as it may between two starts of a run."""


def record(sweep: Sweep) -> dict[str, Any]:
    """All that is to be known of a sweep, as plain values."""
    content = {field.name: getattr(sweep, field.name) for field in dataclasses.fields(sweep)}
    content["runs"] = {
        run.name: {"settings": dict(run.settings), "steps": run.steps} for run in sweep.runs
    }
    return {"sweep": content}


def recorded(workdir: pathlib.Path) -> Sweep:
    """The sweep whose folder it is.

    Raises:
      UserError: it is no sweep's.
    """
    path = workdir / "config.json"
    content = read_json(path).get("sweep") if path.exists() else None
    if content is None:
        raise UserError(f"{workdir} is no folder of a sweep: `bertjax sweep --workdir` makes one")
    runs = tuple(Run(name, **fields) for name, fields in content["runs"].items())
    return Sweep(**content | {"runs": runs})


def check_runs(sweep: Sweep, workdir: pathlib.Path) -> None:
    """Refuses a folder in which a run has begun that this sweep has not.

    A sweep may grow, and lose runs that have not begun.

    Raises:
      UserError: naming the run.
    """
    path = workdir / "config.json"
    if not path.exists() or "sweep" not in read_json(path):
        return
    now = {run.name: _comparable(run.settings) for run in sweep.runs}
    for run in recorded(workdir).runs:
        if (workdir / run.name).is_dir() and now.get(run.name) != _comparable(run.settings):
            has = "another run" if run.name in now else "no run"
            raise UserError(
                f"{workdir} belongs to another sweep: its run {run.name} has begun, {sweep.spec} "
                f"has {has} of this name: choose another --workdir"
            )


def _comparable(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)
