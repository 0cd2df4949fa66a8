"""Checkpoints on disk, without JAX: completeness, integrity and retention.

`checkpoints/300/` contains `state/`, the arrays in Orbax's format; `checkpoint.json`, see `Record`;
and `integrity.json`, the size and SHA-256 of every other file, which is written last. In a bucket,
which guarantees the content of its files, only the sizes are recorded. `amended.json`, if it
exists, replaces `checkpoint.json`: it has the results of an evaluation that was interrupted before
the checkpoint was saved, and repeated when the run resumed.

A folder without `integrity.json` is an interrupted save, not a checkpoint.
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
AMENDED = "amended.json"
_REMOVING = ".removing-"

Metrics = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Record:
    """The metadata of a checkpoint.

    Attributes:
      step: Optimizer steps done.
      arrays: `{"shape": [...], "dtype": "float32"}` of every array, by name.
      metrics: The metrics recorded at that step.
      provenance: Fingerprints of the corpus, tokenizer and config.
      hooks: State dicts of the training loop's hooks, by name.
      version: Version of bertjax that wrote it.
    """

    step: int
    arrays: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, float]
    provenance: Mapping[str, str]
    hooks: Mapping[str, Any]
    version: str


def steps(directory: pathlib.Path) -> list[int]:
    """The steps of the finished checkpoints in a folder, oldest first."""
    return [
        step for step in _step_folders(directory) if (directory / str(step) / INTEGRITY).exists()
    ]


def read_record(checkpoint: pathlib.Path) -> Record:
    """Reads `checkpoint.json`, or the record that replaces it.

    Raises:
      UserError: the file cannot be read, or has another format.
    """
    path = checkpoint / AMENDED
    path = path if path.exists() else checkpoint / RECORD
    content = read_json(path)
    try:
        return Record(**content)
    except TypeError:
        known = ", ".join(field.name for field in dataclasses.fields(Record))
        raise UserError(
            f"{path}: got the fields {', '.join(content)}, expected {known}; use "
            f"the version of bertjax that wrote it, {content.get('version', 'unknown')}"
        ) from None


def metrics(directory: pathlib.Path) -> dict[int, Metrics]:
    """The metrics of every finished checkpoint in a folder, oldest first.

    Those of an unreadable record are empty: it is damaged, or is being removed concurrently.
    """
    found: dict[int, Metrics] = {}
    for step in steps(directory):
        try:
            found[step] = read_record(directory / str(step)).metrics
        except UserError:
            found[step] = {}
    return found


def finish(checkpoint: pathlib.Path, record: Record) -> None:
    """Completes a checkpoint whose arrays are written."""
    write_json(checkpoint / RECORD, dataclasses.asdict(record))
    files = {name: {"size": size, "sha256": digest} for name, size, digest in _contents(checkpoint)}
    write_json(checkpoint / INTEGRITY, {"files": files})


def amend(checkpoint: pathlib.Path, record: Record) -> None:
    """Replaces the record of a finished checkpoint atomically."""
    # Not the file itself: it could not be replaced together with its hash in `integrity.json`.
    write_json(checkpoint / AMENDED, dataclasses.asdict(record))


def find_defect(checkpoint: pathlib.Path) -> str | None:
    """Reads a whole checkpoint and describes its first defect, or returns None."""
    try:
        expected = read_json(checkpoint / INTEGRITY)["files"]
        found = {name: (size, digest) for name, size, digest in _contents(checkpoint)}
    except (UserError, KeyError):
        return f"{INTEGRITY} is missing or unreadable"
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    for name, entry in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name][0] != entry["size"]:
            return f"{name} has {found[name][0]} bytes, expected {entry['size']}"
        if None not in (found[name][1], entry["sha256"]) and found[name][1] != entry["sha256"]:
            return f"{name} has other content than when it was written"
    return None


def size(checkpoint: pathlib.Path) -> int:
    """Total size of a checkpoint's files, in bytes."""
    if storage.is_remote(checkpoint):
        files = storage.with_retries(lambda: storage.list_files(checkpoint), checkpoint)
        return sum(size for size, _ in files.values())
    return sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())


def remove(checkpoint: pathlib.Path) -> None:
    """Removes a checkpoint atomically: an interrupted removal leaves no incomplete one."""
    if storage.is_remote(checkpoint):
        # A bucket cannot rename, only copy.
        (checkpoint / INTEGRITY).unlink(missing_ok=True)
        clear(checkpoint)
        return
    removing = checkpoint.with_name(_REMOVING + checkpoint.name)
    clear(removing)
    checkpoint.rename(removing)
    clear(removing)


def set_aside(checkpoint: pathlib.Path) -> pathlib.Path:
    """Renames a damaged checkpoint to `damaged-STEP`; only the last one is kept."""
    for earlier in checkpoint.parent.glob("damaged-*"):
        clear(earlier)
    return checkpoint.rename(checkpoint.with_name(f"damaged-{checkpoint.name}"))


def incomplete_steps(directory: pathlib.Path) -> list[int]:
    """Steps with arrays but without `integrity.json`, oldest first."""
    complete = set(steps(directory))
    found = [step for step in _step_folders(directory) if (directory / str(step) / STATE).exists()]
    return [step for step in found if step not in complete]


def remove_leftovers(directory: pathlib.Path) -> None:
    """Removes the remains of interrupted saves and removals."""
    existing = {*steps(directory), *incomplete_steps(directory)}
    for step in set(_step_folders(directory)) - existing:
        clear(directory / str(step))
    for path in directory.glob(f"{_REMOVING}*"):
        clear(path)


def clear(folder: pathlib.Path) -> None:
    """Removes a folder and its content; on a disk, errors are ignored."""
    if not storage.is_remote(folder):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        storage.remove_folder(folder)


def _step_folders(directory: pathlib.Path) -> list[int]:
    if not storage.with_retries(directory.exists, directory):
        return []
    return sorted(int(path.name) for path in directory.glob("*") if path.name.isdecimal())


def _contents(checkpoint: pathlib.Path) -> list[tuple[str, int, str | None]]:
    """Name, size and SHA-256 of every file, for `integrity.json`."""
    read = _list_bucket if storage.is_remote(checkpoint) else _hash_files
    return sorted(entry for entry in read(checkpoint) if entry[0] != INTEGRITY)


def _hash_files(checkpoint: pathlib.Path) -> Iterator[tuple[str, int, str]]:
    for folder, _, names in os.walk(checkpoint):
        for name in names:
            path = pathlib.Path(folder, name)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            yield str(path.relative_to(checkpoint)), path.stat().st_size, digest


def _list_bucket(checkpoint: pathlib.Path) -> Iterator[tuple[str, int, None]]:
    for name, (size, _) in storage.with_retries(
        lambda: storage.list_files(checkpoint), checkpoint
    ).items():
        yield name, size, None


DIRECTIONS = {"min": 1.0, "max": -1.0}


@dataclasses.dataclass(frozen=True)
class Retention:
    """Retention policy: which checkpoints of a run are kept.

    Attributes:
      latest: Number of the newest; at least 1, since a run resumes from it.
      best: Number of the best, in addition.
      metric: The metric by which checkpoints are compared.
      mode: "min" if lower values are better, "max" if higher ones are.

    Raises:
      UserError: `latest` or `mode` is invalid.
    """

    latest: int = 3
    best: int = 1
    metric: str = "held_out/mlm/loss"
    mode: str = "min"

    def __post_init__(self):
        if self.latest < 1:
            raise UserError(
                f"keep_checkpoints: got {self.latest}, expected an integer >= 1, since a run "
                "resumes from the newest"
            )
        if self.mode not in DIRECTIONS:
            raise UserError(
                f"best_mode: got {self.mode!r}, expected 'min' (lower is better) or 'max'"
            )


def rank_steps(metrics: Mapping[int, Metrics], metric: str, mode: str) -> list[int]:
    """Sorts the steps that have a metric, best first; of equal ones the older first.

    Args:
      metrics: Metrics of each checkpoint, by step.
      metric: See `Retention`.
      mode: See `Retention`.
    """
    measured = [step for step in metrics if math.isfinite(metrics[step].get(metric, math.nan))]
    return sorted(measured, key=lambda step: (DIRECTIONS[mode] * metrics[step][metric], step))


def steps_to_remove(metrics: Mapping[int, Metrics], keep: Retention) -> list[int]:
    """The steps whose checkpoints are not kept, oldest first, given the metrics of each step."""
    best = rank_steps(metrics, keep.metric, keep.mode)[: keep.best] if keep.best else []
    return sorted(set(metrics) - {*sorted(metrics)[-keep.latest :], *best})
