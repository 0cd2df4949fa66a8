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
import shutil
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


def local_path(workdir: str | os.PathLike) -> pathlib.Path:
    """The path of `local_folder`, whose content is left as it is."""
    path = storage.to_path(workdir)
    return copies.cache_path("runs", path) if storage.is_remote(workdir) else path


def local_folder(workdir: str | os.PathLike, with_checkpoints: bool = False) -> pathlib.Path:
    """The local folder of a workdir: itself, or a local copy of its folder in a bucket.

    Call it before the folder is claimed: it replaces files, and reading a lock releases that of
    the same process. The copy of a run that was deleted from the bucket is removed.

    Args:
      workdir: Path or URL.
      with_checkpoints: Whether to copy checkpoints too; requires a single process.

    Raises:
      UserError: no access to the bucket, or `with_checkpoints` with several processes.
    """
    folder = local_path(workdir)
    if not storage.is_remote(workdir):
        return folder
    if with_checkpoints and _processes() > 1:
        raise UserError(
            f"--workdir {workdir}: got a bucket and {jax.process_count()} processes, expected a "
            "folder on a shared file system; mount the bucket and name the folder in it"
        )
    if not in_use(folder):
        exists = copies.download_files(
            storage.to_path(workdir),
            folder,
            lambda name: with_checkpoints or _LARGE_FOLDER not in name.split("/"),
        )
        if not exists and _is_first():
            shutil.rmtree(folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def sync_to_bucket(folder: pathlib.Path, workdir: str | os.PathLike) -> Iterator[None]:
    """Uploads changed files once a minute and at the end; does nothing for a workdir on a disk.

    Args:
      folder: The local folder of the workdir.
      workdir: Path or URL.
    """
    if not storage.is_remote(workdir) or not _is_first():
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


def _is_first() -> bool:
    """Whether this is the process that writes the small files of a run."""
    return _processes() == 1 or jax.process_index() == 0


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
