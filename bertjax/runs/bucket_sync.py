"""Synchronise the folder of a run with a bucket: small files are local and uploaded on change.

Checkpoints of a pretraining are not among them: all of its processes write these into the bucket
themselves. A fine-tuning is small in all, and so is a suite of them.
"""

import contextlib
import functools
import os
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax

from bertjax.errors import UserError
from bertjax.io import copies, storage
from bertjax.runs.workdir import LOCK, in_use

_SECONDS_BETWEEN = 60
_NOT_SMALL = "checkpoints"


def on_this_machine(workdir: str | os.PathLike, alone: bool = False) -> pathlib.Path:
    """The folder in which a run works: its own, or one that has what its bucket has.

    Args:
      workdir: What the user calls it.
      alone: Whether its checkpoints are also small, and no other machine takes part.

    Raises:
      UserError: there is no right to the bucket, or others take part after all.
    """
    if not storage.is_remote(workdir):
        return storage.to_path(workdir)
    if alone and _processes() > 1:
        raise UserError(
            f"--workdir {workdir}: a job of {jax.process_count()} processes requires a folder that "
            "all of them see: mount the bucket and name the folder in it"
        )
    bucket = storage.to_path(workdir)
    folder = copies.cache_path("runs", bucket)
    if not in_use(folder):
        copies.download_files(
            bucket, folder, lambda name: alone or _NOT_SMALL not in name.split("/")
        )
    return folder


@contextlib.contextmanager
def synced(folder: pathlib.Path, workdir: str | os.PathLike) -> Iterator[None]:
    """Sends what has changed, once a minute and at the end; for a run on a disk it does nothing.

    Use it around all that writes.

    Args:
      folder: The run's folder on this machine.
      workdir: What the user calls it.
    """
    if not storage.is_remote(workdir) or (_processes() > 1 and jax.process_index() != 0):
        yield
        return
    sender = _Sender(folder, storage.to_path(workdir))
    sender.send()
    ended = threading.Event()
    thread = threading.Thread(target=sender.send_until, args=(ended,), name="mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sender.send()


def _processes() -> int:
    """How many take part; who is alone leaves the devices to the commands that it starts."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


class _Sender:
    def __init__(self, folder: pathlib.Path, bucket: Any):
        self._folder, self._bucket = folder, bucket
        self._sent: dict[pathlib.Path, tuple[int, int]] = {}

    def send_until(self, ended: threading.Event) -> None:
        """Goes on after a failure: the run does, and the last time tells."""
        while not ended.wait(_SECONDS_BETWEEN):
            try:
                self.send()
            except (UserError, OSError) as error:
                print(f"storage: {self._bucket}: {error}", file=sys.stderr, flush=True)

    def send(self) -> None:
        """Makes the bucket what the folder is."""
        for path in sorted(self._folder.rglob("*")):
            hidden = path.name == LOCK or path.name.endswith(".part")
            # What is gone by now is told below, the next time.
            with contextlib.suppress(FileNotFoundError):
                if not hidden and path.is_file():
                    self._send_changed(path)
        for path in [path for path in self._sent if not path.exists()]:
            there = self._there(path)
            storage.with_retries(functools.partial(there.unlink, missing_ok=True), there)
            del self._sent[path]

    def _send_changed(self, path: pathlib.Path) -> None:
        status = path.stat()
        facts = status.st_size, status.st_mtime_ns
        if self._sent.get(path) != facts:
            copies.upload(path, self._there(path))
            self._sent[path] = facts

    def _there(self, path: pathlib.Path) -> Any:
        return self._bucket / str(path.relative_to(self._folder))
