"""Plan a sweep: read its runs from the sweep file and check them before the first one starts.

load        sweep file -> Sweep: every run's name, fields and steps, checked against the config
record      Sweep -> content of `config.json` in its folder, from which `read_sweep` restores it
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
from bertjax.runs.workdir import MUTABLE_FIELDS
from bertjax.sweeps import grid
from bertjax.sweeps.run import INIT, SCORE, Run, text

LOG = "run.log"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep file with the options and overrides of the command line.

    Attributes:
      spec: The sweep file, and after a colon its argument.
      verb: `pretrain` or `finetune`.
      options: Flags of the verb besides config and workdir: `init`, `data`, `seeds`.
      overrides: Config overrides of all runs.
      config: The config that all runs share.
      runs: The runs, in the order in which they start.
      metric: Metric by which runs are compared.
      mode: `min` or `max`: which values of the metric are better.
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

    Args:
      spec: The sweep file, and after a colon its argument.
      overrides: Config overrides of all runs.
      options: Flags of fine-tuning: `init`, `data`, `seeds`; None if not set.

    Raises:
      UserError: a run sets a field that the config does not have, or a value that does not fit it;
        two runs have the same name; an option is missing.
    """
    config = load_config(spec, overrides)
    points = _points(spec, load_runs(spec))
    verb = "finetune" if "task" in config else "pretrain"
    _check_options(spec, verb, options, points)
    try:
        names = grid.names(points)
    except UserError as error:
        raise UserError(f"{spec}: {error}") from None
    settings = {
        name: {field: value for field, value in point.items() if field != grid.NAME}
        for name, point in zip(names, points, strict=True)
    }
    steps = {name: _check_run(spec, name, settings[name], overrides) for name in names}
    metric, mode = _main_metric(config, spec)
    content = {
        "spec": spec,
        "verb": verb,
        "options": {name: value for name, value in options.items() if value is not None},
        "overrides": tuple(overrides),
        "config": json.loads(configs.to_json(config)),
        "metric": metric,
        "mode": mode,
    }
    return _make_sweep(content, settings, steps)


def _make_sweep(
    content: Mapping[str, Any],
    settings: Mapping[str, Mapping[str, Any]],
    steps: Mapping[str, int | None],
) -> Sweep:
    """Makes the sweep and its runs of the settings and steps of each run."""
    runs = [
        Run(
            name=name,
            verb=content["verb"],
            options={"config": content["spec"]} | content["options"] | _init_of(settings[name]),
            settings=settings[name],
            overrides=content["overrides"],
            steps=steps[name],
            metric=content["metric"],
            mode=content["mode"],
            log=LOG,
        )
        for name in settings
    ]
    return Sweep(**content, runs=tuple(runs))


def _init_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {INIT: settings[INIT]} if INIT in settings else {}


def _points(spec: str, found: Any) -> list[dict[str, Any]]:
    points = list(found) if isinstance(found, Iterable) and not isinstance(found, Mapping) else None
    if not points or not all(isinstance(point, Mapping) for point in points):
        raise UserError(
            f"{spec}: get_runs(): got {type(found).__name__} {str(found)[:60]!r}, expected a list "
            "of runs, each a dict of fields and values; see bertjax/sweeps/grid.py"
        )
    return [{name: _plain(value) for name, value in point.items()} for point in points]


def _plain(value: Any) -> Any:
    """Converts numpy scalars to Python numbers, and lists to tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value.item() if hasattr(value, "item") else value


def _check_options(
    spec: str, verb: str, options: Mapping[str, Any], points: Sequence[Mapping[str, Any]]
) -> None:
    given = [name for name, value in options.items() if value is not None]
    if verb == "pretrain":
        if given:
            raise UserError(f"--{given[0]} requires fine-tuning: {spec} has no task; leave it out")
        if any(INIT in point for point in points):
            raise UserError(
                f"{spec}: {INIT!r} of a run requires fine-tuning: {spec} has no task; leave it out"
            )
        return
    if options.get("data") is None:
        raise UserError(
            f"--data: got none, expected the folder of the task of {spec}; pass --data DIR"
        )
    if options.get("init") is None and not all(INIT in point for point in points):
        raise UserError(
            f"--init: got none, expected the pretrained run for {spec}; pass --init RUN, "
            f"or set {INIT!r} in every run"
        )


def _check_run(
    spec: str, name: str, settings: Mapping[str, Any], overrides: Sequence[Override]
) -> int | None:
    """Checks the config of a run and returns its steps; None if they follow from the data."""
    fields = {field: text(value) for field, value in settings.items() if field != INIT}
    if both := {field for field, _ in overrides} & fields.keys():
        raise UserError(f"--config.{min(both)} is set by {spec} for the run {name}: leave it out")
    try:
        config = load_config(spec, [*overrides, *fields.items()])
        build.check(config)
    except UserError as error:
        raise UserError(f"{spec}, run {name}: {error}") from None
    if "num_train_epochs" in config or "num_train_steps" not in config:
        return None
    return config.num_train_steps


def _main_metric(config: ConfigDict, spec: str) -> tuple[str, str]:
    if "task" in config:
        return SCORE, "max"
    PRETRAINING.require(config, spec, ("best_metric", "best_mode"))
    return config.best_metric, config.best_mode


MUTABLE_FIELDS = (
    *(f"sweep.config.{field}" for field in (*MUTABLE_FIELDS, "num_train_steps", "data.phases")),
    *("sweep.runs.*", "sweep.options.data", "sweep.options.seeds", "sweep.spec"),
    *("sweep.overrides", "sweep.metric", "sweep.mode"),
)
"""Fields of the record that may change between two starts of a sweep."""


def record(sweep: Sweep) -> dict[str, Any]:
    """The sweep as plain values, for `config.json` in its folder."""
    content = {field.name: getattr(sweep, field.name) for field in dataclasses.fields(sweep)}
    content["runs"] = {
        run.name: {"settings": dict(run.settings), "steps": run.steps} for run in sweep.runs
    }
    return {"sweep": content}


def read_sweep(workdir: pathlib.Path) -> Sweep:
    """The sweep to which a folder belongs.

    Raises:
      UserError: the folder is not a sweep's.
    """
    path = workdir / "config.json"
    content = read_json(path).get("sweep") if path.exists() else None
    if content is None:
        raise UserError(
            f"{workdir} is not the folder of a sweep: expected the --workdir of a bertjax sweep"
        )
    runs = content.pop("runs")
    settings = {name: run["settings"] for name, run in runs.items()}
    return _make_sweep(content, settings, {name: run["steps"] for name, run in runs.items()})


def check_runs(sweep: Sweep, workdir: pathlib.Path) -> None:
    """Refuses a folder with a started run that the sweep does not contain.

    A sweep may grow, and lose runs that have not started.

    Raises:
      UserError: naming the run.
    """
    path = workdir / "config.json"
    if not path.exists() or "sweep" not in read_json(path):
        return
    now = {run.name: _comparable(run.settings) for run in sweep.runs}
    for run in read_sweep(workdir).runs:
        if (workdir / run.name).is_dir() and now.get(run.name) != _comparable(run.settings):
            has = "another run" if run.name in now else "no run"
            raise UserError(
                f"{workdir} belongs to another sweep: its run {run.name} has started, {sweep.spec} "
                f"has {has} of this name; choose another --workdir"
            )


def _comparable(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)
