"""The folder of a run in a bucket: its small files lie on this machine and are sent as they change.

Checkpoints of a pretraining are not among them: all of its processes write these into the bucket
themselves. A fine-tuning is small in all.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import os
import pathlib
import time
from typing import Any

import jax

from bertjax.data import cache_folder, storage
from bertjax.errors import UserError
from bertjax.train.hooks import Hook, Values
from bertjax.train.workdir import LOCK, in_use

_SECONDS_BETWEEN = 60
_NOT_SMALL = "checkpoints"


def on_this_machine(workdir: str | os.PathLike, alone: bool = False) -> pathlib.Path:
    """The folder in which a run works: its own, or one that has what its bucket has.

    Args:
      workdir: What a person calls it.
      alone: Whether its checkpoints are also small, and no other machine takes part.

    Raises:
      UserError: there is no right to the bucket, or others take part after all.
    """
    if not storage.is_remote(workdir):
        return pathlib.Path(workdir)
    if alone and jax.process_count() > 1:
        raise UserError(
            f"--workdir {workdir}: a job of {jax.process_count()} processes wants a folder that "
            "all of them see: mount the bucket and name the folder in it"
        )
    bucket = storage.place(workdir)
    digest = hashlib.sha256(str(bucket).encode()).hexdigest()[:16]
    folder = cache_folder.directory() / "runs" / digest / bucket.name
    if not in_use(folder):
        storage.bring(bucket, folder, without="" if alone else _NOT_SMALL)
    return folder


class Mirror(Hook):
    """Sends what has changed, once a minute and at the end; for a run on a disk it does nothing.

    Use it as a context manager around all that writes.

    Args:
      folder: The run's folder on this machine.
      workdir: What a person calls it.
    """

    def __init__(self, folder: pathlib.Path, workdir: str | os.PathLike):
        self._folder = folder
        self._bucket = None
        if storage.is_remote(workdir) and jax.process_index() == 0:
            self._bucket = storage.place(workdir)
        self._sent: dict[pathlib.Path, tuple[int, int]] = {}
        self._sender = concurrent.futures.ThreadPoolExecutor(1, "mirror")
        self._sending: concurrent.futures.Future | None = None
        self._begun = time.monotonic()

    def __enter__(self) -> "Mirror":
        self._send()
        return self

    def __exit__(self, *_) -> None:
        self._sender.shutdown()
        self._send()

    def recorded(self, step: int, values: Values) -> None:
        """Sends in the background, while the run goes on."""
        if self._bucket is None or time.monotonic() - self._begun < _SECONDS_BETWEEN:
            return
        if self._sending is None or self._sending.done():
            if self._sending is not None:
                self._sending.result()
            self._begun = time.monotonic()
            self._sending = self._sender.submit(self._send)

    def _send(self) -> None:
        if self._bucket is None:
            return
        for path in sorted(self._folder.rglob("*")):
            hidden = path.name == LOCK or path.name.endswith(".part")
            # What is gone by now is told below, the next time.
            with contextlib.suppress(FileNotFoundError):
                if not hidden and path.is_file():
                    self._send_changed(path)
        for path in [path for path in self._sent if not path.exists()]:
            there = self._there(path)
            storage.patiently(functools.partial(there.unlink, missing_ok=True), there)
            del self._sent[path]

    def _send_changed(self, path: pathlib.Path) -> None:
        status = path.stat()
        facts = status.st_size, status.st_mtime_ns
        if self._sent.get(path) != facts:
            storage.put(path, self._there(path))
            self._sent[path] = facts

    def _there(self, path: pathlib.Path) -> Any:
        return self._bucket / str(path.relative_to(self._folder))
