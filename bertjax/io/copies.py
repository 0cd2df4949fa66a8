"""Copy files between a bucket and the local disk; local paths are used in place.

  local_copy                          a file or folder of a bucket -> its cached copy on this disk
  download_files                      some files of a bucket's folder -> a local folder
  atomic_upload, upload_folder        a folder written on this disk -> a folder of a bucket
  upload_file, upload                 a file written on this disk -> a file of a bucket
  new_folder                          a folder that appears, here or in a bucket, once complete

Corpora are copied as a whole: every process reads every shard sooner or later, and array_record
reads local files only.
"""

import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import cache_directory, write_atomic

_NUM_THREADS = 16
_STAMP = ".fetched.json"
_UPLOAD = ".upload"


def cache_path(purpose: str, path: Any) -> pathlib.Path:
    """Return the path in the local cache that belongs to a path of a bucket."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return cache_directory() / purpose / digest / path.name


def local_copy(name: Any) -> pathlib.Path:
    """Return a local path to a file or folder, downloading it from a bucket if necessary.

    A download is cached and reused until a size or version in the bucket changes. If several
    processes need the same path, one downloads it and the others wait.

    Raises:
      UserError: The path does not exist, or access is denied.
    """
    if not storage.is_remote(name):
        return pathlib.Path(name)
    source = storage.to_path(name)
    files = storage.with_retries(lambda: storage.list_files(source), source)
    if not files:
        raise UserError(f"{source} does not exist or is empty; check the path")
    target = cache_path("fetched", source)
    folder = target.parent
    with _lock(folder):
        stamp = folder / _STAMP
        versions = {file: list(version) for file, version in sorted(files.items())}
        if target.exists() and stamp.exists() and json.loads(stamp.read_bytes()) == versions:
            return target
        stamp.unlink(missing_ok=True)
        _remove(target)
        pairs = [(source / file if file else source, target / file) for file in files]
        _copy_all(pairs, _copy_file)
        write_atomic(stamp, json.dumps(versions).encode())
    return target


def orbax_path(checkpoint: Any) -> Any:
    """Return a path from which Orbax can restore: it reads local paths and gs://, but not s3://."""
    return local_copy(checkpoint) if str(checkpoint).startswith("s3://") else checkpoint


def upload(source: pathlib.Path, target: Any) -> None:
    """Copy a local file to a bucket."""
    storage.with_retries(lambda: _copy_file(source, target), target)


def download_files(bucket: Any, folder: pathlib.Path, include: Callable[[str], bool]) -> bool:
    """Copy the files of a bucket's folder into a local folder, replacing files of the same name.

    Args:
      bucket: The folder of the bucket.
      folder: The local folder.
      include: Whether a file is copied, by its name relative to `bucket`.

    Returns:
      Whether the bucket's folder has any file, copied or not.
    """
    files = storage.with_retries(lambda: storage.list_files(bucket), bucket)
    pairs = [(bucket / name, folder / name) for name in files if include(name)]
    _copy_all(pairs, _copy_file_atomic)
    return bool(files)


@contextlib.contextmanager
def atomic_upload(name: Any, last: str) -> Iterator[pathlib.Path]:
    """A context manager that yields a local folder and uploads it when the block completes.

    For a local path that path itself is yielded. For a bucket the folder is the same one every
    time, so that an interrupted command can continue; files that it has uploaded are not uploaded
    again.

    Args:
      name: The path that the user gave.
      last: The file that is uploaded last, and without which the folder counts as incomplete.
    """
    if not storage.is_remote(name):
        yield storage.to_path(name)
        return
    target = storage.to_path(name)
    folder = cache_path("delivered", target)
    folder.mkdir(parents=True, exist_ok=True)
    is_complete = storage.with_retries((target / last).exists, target)
    downloads_last = is_complete and not (folder / last).exists()
    if downloads_last:
        _copy_all([(target / last, folder / last)], _copy_file_atomic)
    try:
        yield folder
    except BaseException:
        if downloads_last:
            (folder / last).unlink(missing_ok=True)
        raise
    upload_tree(folder, target, last)
    shutil.rmtree(folder.parent)


@contextlib.contextmanager
def upload_file(name: Any) -> Iterator[pathlib.Path]:
    """A context manager that yields a local file path and uploads it when the block completes."""
    if not storage.is_remote(name):
        yield storage.to_path(name)
        return
    target = storage.to_path(name)
    with tempfile.TemporaryDirectory(prefix="bertjax-") as folder:
        file = pathlib.Path(folder) / target.name
        yield file
        upload(file, target)


@contextlib.contextmanager
def upload_folder(name: Any) -> Iterator[pathlib.Path]:
    """A context manager that yields a temporary folder and uploads its files at the end.

    For a local path that path itself is yielded.
    """
    if not storage.is_remote(name):
        yield storage.to_path(name)
        return
    with tempfile.TemporaryDirectory(prefix="bertjax-") as folder:
        yield pathlib.Path(folder)
        files = [path for path in sorted(pathlib.Path(folder).iterdir()) if path.is_file()]
        _copy_all([(path, storage.to_path(name) / path.name) for path in files], _copy_file)


@contextlib.contextmanager
def new_folder(target: Any, last: str) -> Iterator[pathlib.Path]:
    """A context manager that yields a temporary folder, which becomes `target` at the end.

    If the block raises an exception, `target` is left as it was.

    Args:
      target: The path of the folder, local or in a bucket.
      last: The file that is uploaded last to a bucket.

    Raises:
      UserError: the target exists and is not empty, or cannot be created.
    """
    if storage.is_remote(target):
        with tempfile.TemporaryDirectory(prefix="bertjax-") as parent:
            folder = pathlib.Path(parent) / target.name
            folder.mkdir()
            if storage.with_retries(lambda: storage.list_files(target), target):
                raise _not_new(target)
            yield folder
            upload_tree(folder, target, last)
        return
    if os.path.exists(target) and (not target.is_dir() or any(target.iterdir())):
        raise _not_new(target)
    storage.check_folder(target)
    unfinished = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex}")
    try:
        storage.make_folder(unfinished)
        yield unfinished
        unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _not_new(target: pathlib.Path) -> UserError:
    return UserError(f"{target} exists and is not empty: specify a new folder, or remove it first")


def upload_tree(folder: pathlib.Path, target: Any, last: str) -> None:
    """Upload a local folder to a bucket, the file `last` after all others.

    An interrupted upload of the same local files is resumed: files of equal size in the bucket are
    skipped. Until it is complete, `.upload` in the bucket identifies the local files; if that is
    missing or identifies others, everything is uploaded.
    """
    names = {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".part"  # left by a process that was killed
    }
    uploaded = storage.with_retries(lambda: storage.list_files(target), target)
    mark, identity = target / _UPLOAD, _identify(names)
    is_resumed = _UPLOAD in uploaded and storage.with_retries(mark.read_bytes, mark) == identity
    if not is_resumed:
        uploaded = {}
        storage.with_retries(lambda: mark.write_bytes(identity), mark)
    missing = {
        name: path
        for name, path in names.items()
        if name != last and uploaded.get(name, (None,))[0] != path.stat().st_size
    }
    print(f"storage: uploading {len(missing) + 1} files to {target}", file=sys.stderr, flush=True)
    _copy_all([(path, target / name) for name, path in missing.items()], _copy_file)
    upload(names[last], target / last)
    storage.with_retries(lambda: mark.unlink(missing_ok=True), mark)


def _identify(files: Mapping[str, pathlib.Path]) -> bytes:
    """Identify the content of local files without reading it."""
    stats = [(name, path.stat()) for name, path in files.items()]
    content = json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])
    return hashlib.sha256(content.encode()).hexdigest().encode()


def _copy_file(source: Any, target: Any) -> None:
    """Copy a file from a bucket to a local path, or the other way round."""
    import fsspec

    remote = target if storage.is_remote(target) else source
    client, name = fsspec.core.url_to_fs(str(remote))
    if remote is target:
        client.put_file(str(source), name)
    else:
        client.get_file(name, str(target))
        changed = client.modified(name).timestamp()
        os.utime(target, (changed, changed))


def _copy_file_atomic(source: Any, target: pathlib.Path) -> None:
    """Download a file atomically: other processes never read a partial file."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    _copy_file(source, part)
    part.replace(target)


def _copy_all(pairs: list[tuple[Any, Any]], copy: Callable[[Any, Any], None]) -> None:
    """Copy (source, target) pairs in parallel."""
    for folder in {target.parent for _, target in pairs}:
        folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS, "copy") as pool:
        tasks = [
            pool.submit(storage.with_retries, functools.partial(copy, source, target), source)
            for source, target in pairs
        ]
        for task in tasks:
            task.result()


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(folder: pathlib.Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
