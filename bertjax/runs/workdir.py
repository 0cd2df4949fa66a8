"""The working directory of a run: its lock, its config, its summary.

`config.json` says which config the folder belongs to; `checkpoints/`, `metrics.jsonl`,
`tensorboard/` and `summary.json` are what the run writes into it.
"""

import errno
import fcntl
import fnmatch
import json
import os
import pathlib
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import read_json, write_json
from bertjax.runs import foreign_files

FREE_FIELDS = (
    *("log_every", "eval_every", "checkpoint_every", "keep_*", "best_*", "mesh", "mesh.*"),
    *("watchdog_minutes", "objectives.*.teacher"),
    *("data.microbatches", "model.remat", "model.unroll"),
)
"""Fields that may change between two starts of one run: none of them changes what is learned.

A teacher may lie elsewhere; whether it is the same, its fingerprint in the checkpoints says.
"""

_TRACES = (
    *("metrics.jsonl", "checkpoints/*", "seed_*/*"),
    *("*/metrics.jsonl", "*/seed_*/*", "*/results.json", "*/*/results.json"),
)
"""What a run leaves once it trains, and the runs of a suite or of a sweep below it.

Before that, a folder is not kept from other configs.
"""

LOCK = ".lock"

_SHOWN_DIFFERENCES = 6

_FLOCK = "@hhqqi4x"
"""Linux's `struct flock`: type, whence, start, length, process."""


class Claim:
    """Holds a folder for one process at a time; ends with `release`, `with`, or the process.

    A start that is refused (`UserError` in the `with`) before anything was trained leaves
    `config.json` as it was: a folder with one counts as a run.
    """

    def __init__(self, workdir: pathlib.Path):
        self._config = workdir / "config.json"
        self._config_before = self._config.read_bytes() if self._config.exists() else None
        self._descriptor = os.open(workdir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Unlike flock, these locks are not inherited by worker processes that outlive the run.
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise UserError(
                f"{workdir} is in use by another process: wait for it or stop it, "
                f"or choose another --workdir"
            ) from None

    def release(self) -> None:
        """Lets others claim the folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        if kind is not None and issubclass(kind, UserError):
            self._restore_config()
        self.release()

    def _restore_config(self) -> None:
        if _has_trained(self._config.parent):
            return
        if self._config_before is None:
            self._config.unlink(missing_ok=True)
        else:
            self._config.write_bytes(self._config_before)

    def __del__(self) -> None:
        self.release()


def claim(
    workdir: str | os.PathLike,
    config: Mapping[str, Any],
    *,
    free: Sequence[str] = FREE_FIELDS,
) -> Claim:
    """Makes a folder this config's own, or finds that it is, and holds it for this process.

    A folder in which nothing was trained yet may become another config's.

    Hold on to what is returned: `with claim(workdir, config): ...`. On several hosts, one claims.

    Args:
      workdir: the folder; made where it is absent.
      config: plain values as they go into `config.json`.
      free: patterns of dotted fields that may differ from the folder's config. Besides these,
        `num_train_steps` and `data.phases` may grow: a finished run is extended so. A field that
        is new and off (false, 0, empty) is no difference: an older version began the run.

    Raises:
      UserError: the folder belongs to another config, whose fields are named, is in use, or holds
        files that no run wrote.
    """
    if "://" in str(workdir):
        raise UserError(
            f"workdir {str(workdir)!r} is a URL, which only pretrain and finetune take: mount the "
            f"bucket (gcsfuse does this for gs://) and name the folder in it"
        )
    folder = pathlib.Path(workdir)
    if not (folder / LOCK).exists() and not _has_trained(folder):
        foreign_files.refuse(folder, config)
    storage.make_folder(folder)
    held = Claim(folder)
    try:
        _compare(folder, config, free)
        write_json(folder / "config.json", config)
    except BaseException:
        held.release()
        raise
    return held


def in_use(workdir: str | os.PathLike) -> bool:
    """Whether a process holds the folder at this moment, as far as this machine knows."""
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
    """Asks the kernel who would be in the way: unlike taking the lock, that is in nobody's way."""
    question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with path.open("rb") as file:
        answer = fcntl.fcntl(file, fcntl.F_GETLK, question)
    return struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK


def write_summary(workdir: str | os.PathLike, summary: Mapping[str, Any]) -> None:
    """Writes `summary.json`, whole or not at all."""
    write_json(pathlib.Path(workdir) / "summary.json", summary)


def read_summary(workdir: str | os.PathLike) -> dict[str, Any] | None:
    """What `write_summary` wrote, or None."""
    path = pathlib.Path(workdir) / "summary.json"
    return read_json(path) if path.exists() else None


def _compare(folder: pathlib.Path, config: Mapping[str, Any], free: Sequence[str]) -> None:
    path = folder / "config.json"
    if not path.exists() or not _has_trained(folder):
        return
    old, new = _fields(read_json(path)), _fields(json.loads(json.dumps(config)))
    differing = [
        name
        for name in dict.fromkeys([*old, *new])
        if old.get(name, ...) != new.get(name, ...) and not _may_change(name, old, new, free)
    ]
    if differing:
        shown = [
            f"{name}: {_text(old, name)} there, {_text(new, name)} here"
            for name in differing[:_SHOWN_DIFFERENCES]
        ]
        rest = len(differing) - len(shown)
        raise UserError(
            f"{folder} belongs to another config ({'; '.join(shown)}"
            f"{f'; and {rest} more' if rest else ''}): choose another --workdir, or the config "
            f"that {path} holds"
        )


def _has_trained(folder: pathlib.Path) -> bool:
    found = (path for pattern in _TRACES for path in folder.glob(pattern))
    return any(path.is_dir() or path.stat().st_size for path in found)


def _may_change(name: str, old: dict, new: dict, free: Sequence[str]) -> bool:
    if name == "num_train_steps" and name in old and name in new:
        return new[name] >= old[name]
    if name == "data.phases" and name in old and name in new:
        return _prolong(old[name], new[name])
    if name not in old and not new[name]:
        return True  # a newer version's option, which is off
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in free)


def _prolong(old: list[list[int]], new: list[list[int]]) -> bool:
    """Whether phases begin with those of before, of which the last may have grown.

    A fourth number, of microbatches, is free.
    """
    if not old or len(new) < len(old):
        return False
    *first, (steps, *shape) = [phase[:3] for phase in old]
    *new_first, (new_steps, *new_shape) = [phase[:3] for phase in new[: len(old)]]
    return new_first == first and new_steps >= steps and new_shape == shape


def _fields(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted name, and the order of the objectives, which counts."""
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
