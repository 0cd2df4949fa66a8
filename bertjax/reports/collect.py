"""Collect the runs of folders: pretraining, fine-tuning, and the runs of sweeps and suites."""

import dataclasses
import pathlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import read_json
from bertjax.runs import bucket_sync
from bertjax.sweeps import features, glue_table, progress, superglue, sweep, table
from bertjax.sweeps.progress import Progress
from bertjax.sweeps.run import Run, scores_of_suite
from bertjax.train.checkpoint import origin
from bertjax.train.metric_records import read_metrics
from bertjax.train.starts import read_starts

PRETRAINING, FINE_TUNING = "pretraining", "fine-tuning"

Records = Sequence[Mapping[str, Any]]

_EXPECTED = "expected the --workdir of a bertjax pretrain, finetune, sweep or suite"
_SEED = "seed_"
_SUITES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], table.Rows]]] = MappingProxyType(
    {
        "glue": ("GLUE", lambda content: glue_table.rows(scores_of_suite(content))),
        "superglue": ("SuperGLUE", lambda content: superglue.rows(scores_of_suite(content))),
        "features": (
            "Feature-based NER",
            lambda content: features.rows(features.read(content)),
        ),
    }
)
"""Key in the `config.json` of a suite -> title, and `results.json` -> rows of its table."""


@dataclasses.dataclass(frozen=True)
class ReportedRun:
    """A run with its config and all records in its folder.

    Attributes:
      path: The path of its folder as the user named it, or of the folder that holds it.
      progress: Its state and newest metrics.
      kind: `PRETRAINING` or `FINE_TUNING`.
      config: Content of its `config.json`; of a run that has not started, fields of its sweep.
      parts: (seed, records) of each seed of a fine-tuning; (None, records) of a pretraining.
      results: Content of the `results.json` of a fine-tuning, also of one with unfinished seeds.
      starts: Records of `starts.jsonl`, of all seeds.
      command: Its command, if a sweep defines it.
    """

    path: str
    progress: Progress
    kind: str
    config: Mapping[str, Any]
    parts: Sequence[tuple[int | None, Records]]
    results: Mapping[str, Any] | None
    starts: Sequence[Mapping[str, Any]]
    command: str = ""

    @property
    def metric(self) -> str:
        """The metric by which checkpoints, epochs or runs of its kind are compared."""
        return self.progress.run.metric

    @property
    def note(self) -> str:
        """The error of the run, or the reason why it has no metrics; "" for none."""
        if self.progress.error:
            return self.progress.error
        if any(records for _, records in self.parts):
            return ""
        return "imported, not trained" if "imported" in self.config else "no metrics yet"


@dataclasses.dataclass(frozen=True)
class Collection:
    """The runs of several folders.

    Attributes:
      runs: Each run once, in the order of the folders.
      tables: (title, rows) of the suites.
    """

    runs: Sequence[ReportedRun]
    tables: Sequence[tuple[str, table.Rows]]


def collect(paths: Sequence[str]) -> Collection:
    """Reads all runs of folders; nothing is written.

    Args:
      paths: Workdirs of runs, sweeps and suites: paths or URLs.

    Raises:
      UserError: a folder is none of these.
    """
    runs: dict[pathlib.Path, ReportedRun] = {}
    tables = []
    for path in paths:
        folder, config = _open(path)
        suite = next((name for name in _SUITES if name in config), None)
        if "sweep" in config:
            found = _runs_of_sweep(path, folder)
        elif suite is not None:
            found = _runs_of_suite(path, folder)
            if (folder / "results.json").exists():
                title, rows = _SUITES[suite]
                tables.append((f"{title}: {path}", rows(read_json(folder / "results.json"))))
        else:
            found = iter([_read_run(path, folder)])
        for run in found:
            runs.setdefault(run.progress.workdir.resolve(), run)
    return Collection(list(runs.values()), tables)


def _open(path: str) -> tuple[pathlib.Path, dict[str, Any]]:
    """The local folder of a path or URL, and its `config.json`."""
    named = storage.to_path(path)
    if not storage.with_retries(named.is_dir, named):
        is_file = storage.with_retries(named.is_file, named)
        raise UserError(f"{path} is {'a file' if is_file else 'missing'}: {_EXPECTED}")
    folder = bucket_sync.local_folder(path)
    if folder.name.startswith(_SEED) and (folder.parent / "config.json").is_file():
        raise UserError(f"{path} is a seed of {folder.parent}: {_EXPECTED}")
    if not (folder / "config.json").is_file():
        raise UserError(f"no config.json in {path}: {_EXPECTED}")
    config = read_json(folder / "config.json")
    origin.refuse_released(folder, config)
    if "model" not in config and "sweep" not in config and not config.keys() & _SUITES.keys():
        sections = ", ".join(config) or "nothing"
        raise UserError(f"{path}: got a config.json with {sections}, {_EXPECTED}")
    return folder, config


def _runs_of_sweep(path: str, folder: pathlib.Path) -> Iterator[ReportedRun]:
    planned, found = sweep.read(path)
    for one in found:
        inside = str(storage.to_path(path) / one.run.name)
        config = _read_config(folder / one.run.name)
        if not config:
            config = flatten(planned.config) | dict(one.run.settings)
        command = shlex.join(["bertjax", *one.run.words(inside)])
        yield _make_run(inside, one, config, command)


def _runs_of_suite(path: str, folder: pathlib.Path) -> Iterator[ReportedRun]:
    names = ("config.json", "failure.json")
    folders = {
        found.parent
        for pattern in ("*", "*/*")
        for name in names
        for found in folder.glob(f"{pattern}/{name}")
    }
    for inside in sorted(folders):
        name = inside.relative_to(folder).as_posix()
        yield _read_run(str(storage.to_path(path) / name), inside, name)


def _read_run(path: str, folder: pathlib.Path, name: str = "") -> ReportedRun:
    """Reads a run that no sweep describes: of a suite, or started by hand."""
    config = _read_config(folder)
    results = _read_results(folder)
    finetunes = "task" in config or (not config and bool(name))
    seeds = results["seeds"] if results else len(list(folder.glob(f"{_SEED}*")))
    run = Run(
        name=name or folder.name,
        verb="finetune" if finetunes else "pretrain",
        options={"seeds": seeds} if finetunes else {},
        settings={},
        steps=None if finetunes else config.get("num_train_steps"),  # a fine-tuning has it per seed
    )
    if not finetunes and "best_metric" in config:
        run = dataclasses.replace(run, metric=config["best_metric"], mode=config["best_mode"])
    return _make_run(path, progress.read_run(run, folder), config)


def _make_run(
    path: str, found: Progress, config: Mapping[str, Any], command: str = ""
) -> ReportedRun:
    folder = found.workdir
    if found.run.verb == "finetune":
        folders = [
            (_seed_of(seed), seed) for seed in sorted(folder.glob(f"{_SEED}*"), key=_seed_of)
        ]
        kind = FINE_TUNING
    else:
        folders, kind = [(None, folder)], PRETRAINING
    return ReportedRun(
        path=path,
        progress=found,
        kind=kind,
        config=config,
        parts=[(seed, read_metrics(part)) for seed, part in folders],
        results=_read_results(folder) if kind == FINE_TUNING else None,
        starts=[start for _, part in folders for start in read_starts(part)],
        command=command,
    )


def _seed_of(folder: pathlib.Path) -> int:
    number = folder.name.removeprefix(_SEED)
    return int(number) if number.isdecimal() else -1


def _read_config(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "config.json"
    return read_json(path) if path.exists() else {}


def _read_results(folder: pathlib.Path) -> dict[str, Any] | None:
    """The results of the finished seeds; None if there are none."""
    path = folder / "results.json"
    results = read_json(path) if path.exists() else None
    return results if results and "over_seeds" in results else None


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a config by dotted name; an empty section is a value."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            fields |= flatten(value, f"{prefix}{name}.")
        else:
            fields[prefix + name] = value
    return fields
