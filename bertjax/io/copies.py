"""Copy between a bucket and local disk; a local path is used in place.

fetched    a file or a folder -> its copy on this machine
delivered  a folder that is made on this machine -> where the user expected it; sent, a file
bring      some files of a folder -> a folder of this machine
"""

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from bertjax.errors import UserError
from bertjax.io import storage
from bertjax.io.files import cache_directory

_AT_ONCE = 16
_STAMP = ".fetched.json"


def cache_path(purpose: str, path: Any) -> pathlib.Path:
    """Where this machine keeps what belongs to a path of a bucket."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return cache_directory() / purpose / digest / path.name


def local_copy(name: Any) -> pathlib.Path:
    """A file or folder on this machine; of a bucket a copy, kept for as long as it is the same.

    Of several processes that want it together, one fetches it and the others wait.

    Raises:
      UserError: it is not there, or there is no right to it.
    """
    if not storage.is_remote(name):
        return pathlib.Path(name)
    source = storage.to_path(name)
    files = storage.with_retries(lambda: storage.list_files(source), source)
    if not files:
        raise UserError(f"{source} does not exist, or is empty")
    target = cache_path("fetched", source)
    holder = target.parent
    with _alone(holder):
        stamp = holder / _STAMP
        wanted = {file: list(facts) for file, facts in sorted(files.items())}
        if target.exists() and stamp.exists() and json.loads(stamp.read_bytes()) == wanted:
            return target
        stamp.unlink(missing_ok=True)
        _remove(target)
        pairs = [(source / file if file else source, target / file) for file in files]
        _copy(pairs, _put)
        stamp.write_text(json.dumps(wanted))
    return target


def orbax_path(checkpoint: Any) -> Any:
    """Where orbax reads a checkpoint: it does so on a disk and in gs://."""
    return local_copy(checkpoint) if str(checkpoint).startswith("s3://") else checkpoint


def upload(one: pathlib.Path, other: Any) -> None:
    """Copies a file of this machine to another place."""
    storage.with_retries(lambda: _put(one, other), other)


def download_files(bucket: Any, folder: pathlib.Path, wanted: Callable[[str], bool]) -> None:
    """Copies what lies in a bucket, as far as it is expected, over what lies in a folder."""
    names = [
        name
        for name in storage.with_retries(lambda: storage.list_files(bucket), bucket)
        if wanted(name)
    ]
    _copy([(bucket / name, folder / name) for name in names], _put_whole)


@contextlib.contextmanager
def atomic_upload(name: Any, last: str) -> Iterator[pathlib.Path]:
    """A folder on this machine that goes where the user expected it once it is complete.

    What is on a disk is made where it is expected. For a bucket the folder is always the same one,
    so that what was stopped continues; what is there already is not sent again.

    Args:
      name: Where it is expected.
      last: The file without which the folder is none.
    """
    if not storage.is_remote(name):
        yield storage.to_path(name)
        return
    target = storage.to_path(name)
    folder = cache_path("delivered", target)
    folder.mkdir(parents=True, exist_ok=True)
    known = storage.with_retries((target / last).exists, target) and not (folder / last).exists()
    if known:
        _copy([(target / last, folder / last)], _put_whole)
    try:
        yield folder
    except BaseException:
        if known:
            (folder / last).unlink(missing_ok=True)
        raise
    upload_tree(folder, target, last)
    shutil.rmtree(folder.parent)


@contextlib.contextmanager
def upload_file(name: Any) -> Iterator[pathlib.Path]:
    """A file on this machine that goes where the user expected it once it is complete."""
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
    """A local folder whose files are uploaded to the path of the user; a local path is kept."""
    if not storage.is_remote(name):
        yield storage.to_path(name)
        return
    with tempfile.TemporaryDirectory(prefix="bertjax-") as folder:
        yield pathlib.Path(folder)
        files = [path for path in sorted(pathlib.Path(folder).iterdir()) if path.is_file()]
        _copy([(path, storage.to_path(name) / path.name) for path in files], _put)


def upload_tree(folder: pathlib.Path, target: Any, last: str) -> None:
    """Copies a folder of this machine into a bucket, and one of its files behind all others."""
    there = storage.with_retries(lambda: storage.list_files(target), target)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in files}
    missing = {
        name: path
        for name, path in names.items()
        if name != last and there.get(name, (None,))[0] != path.stat().st_size
    }
    print(f"storage: sending {len(missing) + 1} files to {target}", file=sys.stderr, flush=True)
    _copy([(path, target / name) for name, path in missing.items()], _put)
    upload(names[last], target / last)


def _put(one: Any, other: Any) -> None:
    import fsspec

    remote = other if storage.is_remote(other) else one
    client, name = fsspec.core.url_to_fs(str(remote))
    if remote is other:
        client.put_file(str(one), name)
    else:
        client.get_file(name, str(other))
        changed = client.modified(name).timestamp()
        os.utime(other, (changed, changed))


def _put_whole(one: Any, other: pathlib.Path) -> None:
    """Nobody sees half of a file, as in a bucket."""
    part = other.with_name(f".{other.name}.{os.getpid()}.part")
    _put(one, part)
    part.replace(other)


def _copy(pairs: list[tuple[Any, Any]], copy: Callable[[Any, Any], None]) -> None:
    for folder in {other.parent for _, other in pairs}:
        folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE, "copy") as pool:
        tasks = [
            pool.submit(storage.with_retries, lambda one=one, other=other: copy(one, other), one)
            for one, other in pairs
        ]
        for task in tasks:
            task.result()


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
