"""The working directory of a run: its lock, its config, its summary.

A workdir belongs to the config in its `config.json`; the run writes `checkpoints/`,
`metrics.jsonl`, `starts.jsonl`, `summary.json` and, on request, `tensorboard/`. A new workdir may
contain logs, scripts and notes, which schedulers and users put there before a run starts, but no
inputs, no corpus and no tokenizer.
"""

import contextlib
import errno
import fcntl
import fnmatch
import glob
import json
import os
import pathlib
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax import catalog
from bertjax.corpus.reader import UNFINISHED
from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import read_json, write_json
from bertjax.tokenizers.folder import METADATA

MUTABLE_FIELDS = (
    *("log_every", "eval_every", "checkpoint_every", "keep_*", "best_*", "mesh", "mesh.*"),
    *("watchdog_minutes", "tensorboard", "trackers", "objectives.*.teacher"),
    *("data.microbatches", "model.remat", "model.unroll", "init.model"),
)
"""Fields that may change when a run is resumed: none of them changes the result.

A teacher and the model in `init` may be moved: fingerprints identify their parameters.
"""

_TRACES = (
    *("metrics.jsonl", "checkpoints/*", "seed_*/*"),
    *("*/metrics.jsonl", "*/seed_*/*", "*/results.json", "*/*/results.json"),
)
"""Files of a run, or of the runs of a sweep, that has trained at least one step.

A folder without any of them may be claimed by another config.
"""

LOCK = ".lock"

_BEFORE_TRAINING = (LOCK, "metrics.jsonl", "tensorboard", "tokenizer", "seed_*")
"""Files and folders besides `config.json` that a run writes before its first step."""

_MAX_SHOWN_DIFFERENCES = 6

_FLOCK = "@hhqqi4x"
"""Linux's `struct flock`: type, whence, start, length, process."""


class Claim:
    """An exclusive lock on a workdir; released by `release`, by `with`, or when the process ends.

    After a `UserError` inside the `with`, if no step was trained in it, the folder is as before:
    `config.json` is restored, and new files and folders of the run are removed.

    Args:
      workdir: The folder; created if absent.
    """

    _descriptor = -1

    def __init__(self, workdir: pathlib.Path):
        self._folder, self._config = workdir, workdir / "config.json"
        self._new_folders = [path for path in (workdir, *workdir.parents) if not path.exists()]
        new_lock = set() if (workdir / LOCK).exists() else {workdir / LOCK}
        storage.make_folder(workdir)
        self._descriptor = _lock(workdir)
        self._config_before = self._config.read_bytes() if self._config.exists() else None
        self._files_before = _written_before_training(workdir) - new_lock
        self._traces = _traces(workdir)

    def release(self) -> None:
        """Releases the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        is_refused = kind is not None and issubclass(kind, UserError)
        if is_refused and _traces(self._folder) == self._traces:
            self._restore()
        self.release()

    def _restore(self) -> None:
        if self._config_before is None:
            self._config.unlink(missing_ok=True)
        elif self._config.read_bytes() != self._config_before:
            self._config.write_bytes(self._config_before)
        for path in _written_before_training(self._folder) - self._files_before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with contextlib.suppress(OSError):  # another program has written into the folder
            for folder in self._new_folders:
                folder.rmdir()

    def __del__(self) -> None:
        self.release()


def _lock(folder: pathlib.Path) -> int:
    """Opens and locks the lock file of a folder; returns its descriptor."""
    path = folder / LOCK
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Unlike flock, these locks are not inherited by worker processes that outlive the run.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise UserError(
                f"{folder} is in use by another process: wait for it or stop it, "
                f"or choose another --workdir"
            ) from None
        # A refused start may have removed the file between opening and locking it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def _written_before_training(folder: pathlib.Path) -> set[pathlib.Path]:
    return {path for pattern in _BEFORE_TRAINING for path in folder.glob(pattern)}


def claim(
    workdir: str | os.PathLike,
    config: Mapping[str, Any],
    *,
    mutable: Sequence[str] = MUTABLE_FIELDS,
) -> Claim:
    """Locks a workdir and writes its `config.json`; use the result in a `with` statement.

    A folder without a trained step may be claimed by another config. With several hosts, only one
    calls this.

    Args:
      workdir: The folder; created if absent.
      config: Plain values for `config.json`.
      mutable: Patterns of dotted fields that may differ from the folder's config. Besides these,
        `num_train_steps`, `budget_seconds` and `data.phases` may grow, which extends a run. A new
        field that is off (false, 0, empty) does not count: an older version started the run.

    Raises:
      UserError: the folder belongs to another config, whose fields are named, is in use, or holds
        files that no run wrote.
    """
    if "://" in str(workdir):
        raise UserError(
            f"workdir {str(workdir)!r}: got a URL, expected a local folder; mount "
            f"the bucket (gcsfuse for gs://) and name the folder in it"
        )
    folder = pathlib.Path(workdir)
    if not (folder / LOCK).exists() and not _has_trained(folder):
        refuse_foreign_files(folder, config)
    held = Claim(folder)
    try:
        _compare(folder, config, mutable)
        write_json(folder / "config.json", config)
    except BaseException as error:
        held.__exit__(type(error))
        raise
    return held


def without_paths(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The config fields with paths of corpora and of the tokenizer, without the paths.

    These paths are not part of a run's identity: checkpoints and `summary.json` have fingerprints
    of the contents. Paths of raw text are, because its content is known only once it is prepared.

    Args:
      fields: All fields of a config, by dotted name.
    """
    mixture = tuple((name, *weights) for name, _, *weights in fields.get("data.mixture", ()))
    values = {"data.corpus": "", "data.mixture": mixture, "tokenizer.path": ""}
    return {name: value for name, value in values.items() if name in fields}


def in_use(workdir: str | os.PathLike) -> bool:
    """Whether a process of this machine holds the lock of a workdir."""
    path = pathlib.Path(workdir) / LOCK
    if not path.exists() or not os.access(path, os.R_OK):
        return False
    if sys.platform == "linux":
        return _is_locked(path)
    try:
        Claim(path.parent).release()
    except UserError:
        return True
    return False


def _is_locked(path: pathlib.Path) -> bool:
    """Whether the file is locked; F_GETLK takes no lock that a starting run could collide with."""
    query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with path.open("rb") as file:
        reply = fcntl.fcntl(file, fcntl.F_GETLK, query)
    return struct.unpack(_FLOCK, reply)[0] != fcntl.F_UNLCK


def write_summary(workdir: str | os.PathLike, summary: Mapping[str, Any]) -> None:
    """Writes `summary.json` atomically."""
    write_json(pathlib.Path(workdir) / "summary.json", summary)


def read_summary(workdir: str | os.PathLike) -> dict[str, Any] | None:
    """Content of `summary.json`, or None."""
    path = pathlib.Path(workdir) / "summary.json"
    return read_json(path) if path.exists() else None


def is_complete(
    summary: Mapping[str, Any] | None, num_train_steps: int, budget_seconds: float = 0.0
) -> bool:
    """Whether a run has done all its steps, or spent its budget of time.

    Args:
      summary: Content of `summary.json`, or None.
      num_train_steps: Number of steps of the config, which may extend the run.
      budget_seconds: Budget of the config, which may extend the run; 0 for none.
    """
    if summary is None or summary["status"] != "complete":
        return False
    spent = summary.get("budget_seconds_spent", 0.0)
    return summary["steps"] >= num_train_steps or 0 < budget_seconds <= spent


def _compare(folder: pathlib.Path, config: Mapping[str, Any], mutable: Sequence[str]) -> None:
    path = folder / "config.json"
    if not path.exists() or not _has_trained(folder):
        return
    stored = catalog.rename_fields(read_json(path))
    old, new = _fields(stored), _fields(json.loads(json.dumps(config)))
    before, after = old | without_paths(old), new | without_paths(new)
    differing = [
        name
        for name in dict.fromkeys([*old, *new])
        if before.get(name, ...) != after.get(name, ...)
        and not _may_change(name, before, after, mutable)
    ]
    if differing:
        shown = [
            f"{name}: {_text(old, name)} in the folder, got {_text(new, name)}"
            for name in differing[:_MAX_SHOWN_DIFFERENCES]
        ]
        rest = len(differing) - len(shown)
        raise UserError(
            f"{folder} belongs to another config ({'; '.join(shown)}"
            f"{f'; and {rest} more' if rest else ''}): choose another --workdir, or the config "
            f"stored in {path}"
        )


def _traces(folder: pathlib.Path) -> dict[pathlib.Path, int]:
    """The folders and files that match `_TRACES`, except for empty files, and their sizes."""
    found = (path for pattern in _TRACES for path in folder.glob(pattern))
    sizes = {path: -1 if path.is_dir() else path.stat().st_size for path in found}
    return {path: size for path, size in sizes.items() if size}


def _has_trained(folder: pathlib.Path) -> bool:
    return bool(_traces(folder))


def _may_change(name: str, old: dict, new: dict, mutable: Sequence[str]) -> bool:
    if name == "num_train_steps" and name in old and name in new:
        return new[name] >= old[name]
    if name == "budget_seconds" and name in old and name in new:
        return new[name] >= old[name] > 0
    if name == "data.phases" and name in old and name in new:
        return _extends(old[name], new[name])
    if name not in old and not new[name]:
        return True  # a newer version's option, which is off
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in mutable)


def _extends(old: list[list[int]], new: list[list[int]]) -> bool:
    """Whether `new` starts with the phases of `old`, of which the last may be longer.

    The number of microbatches, the fourth value, may change.
    """
    if not old or len(new) < len(old):
        return False
    *first, (steps, *shape) = [phase[:3] for phase in old]
    *new_first, (new_steps, *new_shape) = [phase[:3] for phase in new[: len(old)]]
    return new_first == first and new_steps >= steps and new_shape == shape


def _fields(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted name, and the order of the objectives, which matters."""
    fields = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            fields |= _fields(value, f"{prefix}{name}.")
        else:
            fields[prefix + name] = value
    if not prefix and isinstance(config.get("objectives"), Mapping):
        fields["objectives, in order"] = list(config["objectives"])
    return fields


def _text(fields: dict[str, Any], name: str) -> str:
    return json.dumps(fields[name]) if name in fields else "absent"


_RUN_FILES = (
    *("config.json", "metrics.jsonl", "starts.jsonl", "summary.json", "results.json"),
    *("result.json", "failure.json", "table.md", "submission.zip"),
)
"""Files that runs and sweeps write into their workdir."""

_IGNORED_FILES = (
    *(".*", "*.log", "*log*.txt", "*.out", "*.err", "stdout*", "stderr*", "nohup*", "slurm-*"),
    *("*.[oe][0-9]*", "core*", "*.pid"),  # PBS and Grid Engine, crashes, daemons
    *("*.sh", "*.sbatch", "*.slurm", "*.py", "*.yaml", "*.yml", "*.toml", "*.md"),
)
"""Hidden files, logs, scripts, configs and notes."""

_MAX_SHOWN = 3


def refuse_foreign_files(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Raises if a new workdir contains inputs, a corpus, a tokenizer or other files.

    Subfolders and empty files, such as those of a shell's redirection, are allowed.

    Args:
      folder: A workdir without a run; may be absent.
      config: Config of the run.

    Raises:
      UserError: naming the files.
    """
    advice = "choose a new or an empty --workdir"
    real = pathlib.Path(os.path.realpath(folder))
    for path in _inputs(config):
        if real in path.parents:
            raise UserError(f"{folder} contains {path}, an input of this run; {advice}")
    for outer in (real, *real.parents):
        if (kind := _artefact(outer)) is not None:
            place = "is" if outer == real else f"lies in {outer}, which is"
            raise UserError(f"{folder} {place} the folder of a {kind}; {advice}")
    if not real.is_dir():
        return
    foreign = sorted(path.name for path in real.iterdir() if _is_foreign(path))
    if foreign:
        rest = len(foreign) - _MAX_SHOWN
        names = ", ".join(foreign[:_MAX_SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")
        raise UserError(
            f"{folder}: got files that belong to no run: {names}; {advice} (logs, scripts, hidden "
            "files and folders may be there)"
        )


def _inputs(config: Mapping[str, Any]) -> Iterator[pathlib.Path]:
    """Local files of the config's raw text."""
    data = config.get("data")
    if not isinstance(data, Mapping):
        return
    for name in (*data.get("input", ()), *data.get("validation_input", ())):
        if not storage.is_remote(name):
            pattern = os.path.expanduser(name)
            for path in {pattern, *glob.glob(pattern, recursive=True)}:
                if os.path.exists(path):
                    yield pathlib.Path(os.path.realpath(path))


def _artefact(folder: pathlib.Path) -> str | None:
    """The kind of artefact that a folder is, "corpus" or "tokenizer", or None."""
    if (folder / METADATA).is_file():
        return "tokenizer"
    finished = (folder / "manifest.json").is_file() and (folder / "tokenizer" / METADATA).is_file()
    return "corpus" if finished or (folder / UNFINISHED / "progress.json").is_file() else None


def _is_foreign(path: pathlib.Path) -> bool:
    if path.is_dir() or path.name in _RUN_FILES or path.stat().st_size == 0:
        return False
    return not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _IGNORED_FILES)
