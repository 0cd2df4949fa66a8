"""Synchronise the folder of a run with a bucket: small files are local and uploaded on change.

Pretraining checkpoints are excluded: all processes write them into the bucket directly. Fine-tuning
runs and sweeps of them are small and are synchronised whole.

Buckets support neither appending nor locks, so the small files of a run are written on the first
host's disk and uploaded from there.
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

_SECONDS_BETWEEN_UPLOADS = 60
_LARGE_FOLDER = "checkpoints"


def local_folder(workdir: str | os.PathLike, with_checkpoints: bool = False) -> pathlib.Path:
    """The local folder of a workdir: itself, or a local copy of its folder in a bucket.

    Args:
      workdir: Path or URL.
      with_checkpoints: Whether to copy checkpoints too; requires a single process.

    Raises:
      UserError: no access to the bucket, or `with_checkpoints` with several processes.
    """
    if not storage.is_remote(workdir):
        return storage.to_path(workdir)
    if with_checkpoints and _processes() > 1:
        raise UserError(
            f"--workdir {workdir}: got a bucket and {jax.process_count()} processes, expected a "
            "folder on a shared file system; mount the bucket and name the folder in it"
        )
    bucket = storage.to_path(workdir)
    folder = copies.cache_path("runs", bucket)
    if not in_use(folder):
        copies.download_files(
            bucket, folder, lambda name: with_checkpoints or _LARGE_FOLDER not in name.split("/")
        )
    return folder


@contextlib.contextmanager
def sync_to_bucket(folder: pathlib.Path, workdir: str | os.PathLike) -> Iterator[None]:
    """Uploads changed files once a minute and at the end; does nothing for a workdir on a disk.

    Args:
      folder: The local folder of the workdir.
      workdir: Path or URL.
    """
    if not storage.is_remote(workdir) or (_processes() > 1 and jax.process_index() != 0):
        yield
        return
    uploader = _Uploader(folder, storage.to_path(workdir))
    uploader.upload()
    ended = threading.Event()
    thread = threading.Thread(
        target=uploader.upload_until, args=(ended,), name="bucket-sync", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        uploader.upload()


def _processes() -> int:
    """Number of processes; without `jax.distributed` devices are not initialised to count them."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


class _Uploader:
    def __init__(self, folder: pathlib.Path, bucket: Any):
        self._folder, self._bucket = folder, bucket
        self._uploaded: dict[pathlib.Path, tuple[int, int]] = {}

    def upload_until(self, ended: threading.Event) -> None:
        """Uploads until `ended`; failures are logged, since the last upload will raise."""
        while not ended.wait(_SECONDS_BETWEEN_UPLOADS):
            try:
                self.upload()
            except (UserError, OSError) as error:
                print(f"storage: {self._bucket}: {error}", file=sys.stderr, flush=True)

    def upload(self) -> None:
        """Uploads new and changed files and deletes removed ones."""
        for path in sorted(self._folder.rglob("*")):
            hidden = path.name == LOCK or path.name.endswith(".part")
            # A file that was removed in the meantime is deleted in the bucket below, next time.
            with contextlib.suppress(FileNotFoundError):
                if not hidden and path.is_file():
                    self._upload_if_changed(path)
        for path in [path for path in self._uploaded if not path.exists()]:
            remote = self._remote(path)
            storage.with_retries(functools.partial(remote.unlink, missing_ok=True), remote)
            del self._uploaded[path]

    def _upload_if_changed(self, path: pathlib.Path) -> None:
        status = path.stat()
        version = status.st_size, status.st_mtime_ns
        if self._uploaded.get(path) != version:
            copies.upload(path, self._remote(path))
            self._uploaded[path] = version

    def _remote(self, path: pathlib.Path) -> Any:
        return self._bucket / str(path.relative_to(self._folder))
