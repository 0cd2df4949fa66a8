"""Checkpoints on disk, without JAX: completeness, integrity, and which ones to keep.

`checkpoints/300/` holds `state/`, the arrays as orbax writes them; `checkpoint.json`, see `Record`;
and `integrity.json`, the size and SHA-256 of every other file, which is written last. In a bucket,
which answers for the content of its files itself, the sizes are all.

A folder without `integrity.json` is a save that was cut short, or one that lost it: either way it
is no checkpoint.
"""

import dataclasses
import hashlib
import math
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import read_json, write_json

STATE, RECORD, INTEGRITY = "state", "checkpoint.json", "integrity.json"
_GOING = ".removing-"


@dataclasses.dataclass(frozen=True)
class Record:
    """What is known of a checkpoint beside its arrays.

    Attributes:
      step: optimizer steps done.
      arrays: `{"shape": [...], "dtype": "float32"}` of every array, by name.
      metrics: the newest measurements at that step.
      provenance: fingerprints of what the state depends on: corpus, tokenizer, config.
      hooks: what the hooks of the loop remember across restarts.
      version: of bertjax.
    """

    step: int
    arrays: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, float]
    provenance: Mapping[str, str]
    hooks: Mapping[str, Any]
    version: str


def steps(directory: pathlib.Path) -> list[int]:
    """The steps of the finished checkpoints in a folder, oldest first."""
    return [step for step in _numbered(directory) if (directory / str(step) / INTEGRITY).exists()]


def read_record(checkpoint: pathlib.Path) -> Record:
    """Reads `checkpoint.json`.

    Raises:
      UserError: it cannot be read, or is of another format.
    """
    content = read_json(checkpoint / RECORD)
    try:
        return Record(**content)
    except TypeError:
        known = ", ".join(field.name for field in dataclasses.fields(Record))
        raise UserError(
            f"{checkpoint / RECORD} holds {', '.join(content)}; expected {known}: it was written "
            f"by bertjax {content.get('version', 'of an unknown version')}"
        ) from None


def metrics(directory: pathlib.Path) -> dict[int, Mapping[str, float]]:
    """The metrics of every finished checkpoint in a folder, oldest first.

    One whose record cannot be read has none: it is damaged, or is being removed at this moment.
    """
    found: dict[int, Mapping[str, float]] = {}
    for step in steps(directory):
        try:
            found[step] = read_record(directory / str(step)).metrics
        except UserError:
            found[step] = {}
    return found


def finish(checkpoint: pathlib.Path, record: Record) -> None:
    """Turns a folder whose arrays are written into a checkpoint."""
    write_json(checkpoint / RECORD, dataclasses.asdict(record))
    files = {name: {"size": size, "sha256": digest} for name, size, digest in _contents(checkpoint)}
    write_json(checkpoint / INTEGRITY, {"files": files})


def defect(checkpoint: pathlib.Path) -> str | None:
    """The first thing that is wrong with a checkpoint, read through to the last byte, or None."""
    try:
        wanted = read_json(checkpoint / INTEGRITY)["files"]
        found = {name: (size, digest) for name, size, digest in _contents(checkpoint)}
    except (UserError, KeyError):
        return f"{INTEGRITY} is missing or unreadable"
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    for name, entry in wanted.items():
        if name not in found:
            return f"{name} is missing"
        if found[name][0] != entry["size"]:
            return f"{name} has {found[name][0]} bytes, expected {entry['size']}"
        if None not in (found[name][1], entry["sha256"]) and found[name][1] != entry["sha256"]:
            return f"{name} has other content than was written"
    return None


def size(checkpoint: pathlib.Path) -> int:
    """Bytes of all its files."""
    if storage.is_remote(checkpoint):
        files = storage.with_retries(lambda: storage.list_files(checkpoint), checkpoint)
        return sum(size for size, _ in files.values())
    return sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())


def remove(checkpoint: pathlib.Path) -> None:
    """Removes a checkpoint; killed half-way, nothing is left that looks like one."""
    if storage.is_remote(checkpoint):
        # Nothing is renamed in a bucket, all is copied.
        (checkpoint / INTEGRITY).unlink(missing_ok=True)
        clear(checkpoint)
        return
    going = checkpoint.with_name(_GOING + checkpoint.name)
    clear(going)
    checkpoint.rename(going)
    clear(going)


def set_aside(checkpoint: pathlib.Path) -> pathlib.Path:
    """Moves a damaged checkpoint out of the way; only the one moved last is kept."""
    for earlier in checkpoint.parent.glob("damaged-*"):
        clear(earlier)
    return checkpoint.rename(checkpoint.with_name(f"damaged-{checkpoint.name}"))


def unfinished(directory: pathlib.Path) -> list[int]:
    """Steps whose arrays are all there but whose `integrity.json` is not, oldest first."""
    whole = set(steps(directory))
    found = [step for step in _numbered(directory) if (directory / str(step) / STATE).exists()]
    return [step for step in found if step not in whole]


def sweep(directory: pathlib.Path) -> None:
    """Removes what saves and removals that were cut short have left behind."""
    written = {*steps(directory), *unfinished(directory)}
    for step in set(_numbered(directory)) - written:
        clear(directory / str(step))
    for path in directory.glob(f"{_GOING}*"):
        clear(path)


def clear(folder: pathlib.Path) -> None:
    """Removes a folder as far as it can be removed."""
    if not storage.is_remote(folder):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        storage.remove_folder(folder)


def _numbered(directory: pathlib.Path) -> list[int]:
    if not storage.with_retries(directory.exists, directory):
        return []
    return sorted(int(path.name) for path in directory.glob("*") if path.name.isdecimal())


def _contents(checkpoint: pathlib.Path) -> list[tuple[str, int, str | None]]:
    """Name, size and SHA-256 of every file that `integrity.json` answers for."""
    read = _sizes_in_bucket if storage.is_remote(checkpoint) else _read_through
    return sorted(facts for facts in read(checkpoint) if facts[0] != INTEGRITY)


def _read_through(checkpoint: pathlib.Path) -> Iterator[tuple[str, int, str]]:
    for folder, _, names in os.walk(checkpoint):
        for name in names:
            path = pathlib.Path(folder, name)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            yield str(path.relative_to(checkpoint)), path.stat().st_size, digest


def _sizes_in_bucket(checkpoint: pathlib.Path) -> Iterator[tuple[str, int, None]]:
    for name, (size, _) in storage.with_retries(
        lambda: storage.list_files(checkpoint), checkpoint
    ).items():
        yield name, size, None


Metrics = Mapping[str, float]

DIRECTIONS = {"min": 1.0, "max": -1.0}


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which checkpoints of a run stay.

    Attributes:
      latest: how many of the newest; at least 1, since a run resumes from them.
      best: how many of the best besides.
      metric: the name of the metric that decides which are best.
      mode: "min" when less of it is better, "max" when more is.

    Raises:
      UserError: no checkpoint would stay, or the mode is neither.
    """

    latest: int = 3
    best: int = 1
    metric: str = "held_out/mlm/loss"
    mode: str = "min"

    def __post_init__(self):
        if self.latest < 1:
            raise UserError(
                f"keep_checkpoints={self.latest}: a run resumes from the newest; expected 1 or more"
            )
        if self.mode not in DIRECTIONS:
            raise UserError(f"best_mode={self.mode!r}: expected 'min' (less is better) or 'max'")


def ranked(metrics: Mapping[int, Metrics], metric: str, mode: str) -> list[int]:
    """The steps at which a metric was measured, best first; of equal ones the older first.

    Args:
      metrics: each checkpoint's metrics, by step.
      metric: see `Keep`.
      mode: see `Keep`.
    """
    measured = [step for step in metrics if math.isfinite(metrics[step].get(metric, math.nan))]
    return sorted(measured, key=lambda step: (DIRECTIONS[mode] * metrics[step][metric], step))


def superfluous(metrics: Mapping[int, Metrics], keep: Keep) -> list[int]:
    """The steps whose checkpoints may go, oldest first; `metrics` are those of each, by step."""
    best = ranked(metrics, keep.metric, keep.mode)[: keep.best] if keep.best else []
    kept = {*sorted(metrics)[-keep.latest :], *best}
    return sorted(set(metrics) - kept)
