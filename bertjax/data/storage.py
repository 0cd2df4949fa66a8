"""What lies in a bucket (gs://, s3://), beside what lies on a disk.

place      what a person wrote -> a path, of a disk or of a bucket
fetched    a file or a folder -> its copy on this machine; what is on a disk is its own copy
delivered  a folder that is made on this machine -> where a person wanted it; sent, a file
patiently  does once more, a while later, what storage failed at

A path of a bucket (`etils.epath`) has the methods of `pathlib`, but what costs a request each time.
"""

import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bertjax.data.cache_folder import directory
from bertjax.errors import UserError

_EXTRAS = {"gs": "gcs", "s3": "s3"}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")

_WAITS = (1, 2, 4, 8, 16, 32)
"""Seconds between one try and the next, times something between a half and one and a half."""

_PASSING_CODES = {408, 429, 500, 502, 503, 504}
_SHUT_CODES = {401, 403}
_PASSING = {
    *(errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET),
    *(errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EREMOTEIO),
}
_AT_ONCE = 16
_STAMP = ".fetched.json"

Result = TypeVar("Result")


def is_remote(name: Any) -> bool:
    """Whether a path is a URL."""
    return _SCHEME.match(str(name)) is not None


def place(name: Any) -> Any:
    """The path that a person means.

    Raises:
      UserError: a URL of a kind that is not known, or for which a package is missing.
    """
    scheme = _SCHEME.match(str(name))
    if scheme is None:
        return pathlib.Path(name)
    if scheme[1] not in _EXTRAS:
        known = ", ".join(f"{name}://" for name in _EXTRAS)
        raise UserError(f"{name}: wanted a path, or one that begins with {known}")
    try:
        _forget_listings()
        from etils import epath

        path = epath.Path(str(name))
        patiently(path.exists, path)
    except ImportError:
        raise UserError(
            f"{name}: {scheme[1]}:// wants a package: pip install 'bertjax[{_EXTRAS[scheme[1]]}]'"
        ) from None
    return path


def _forget_listings() -> None:
    """Has clients ask anew each time: other machines of a run write there too."""
    from fsspec import config

    for protocol in ("gs", "gcs", "s3"):
        config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)


def beside(purpose: str, path: Any) -> pathlib.Path:
    """Where this machine keeps what belongs to a path of a bucket."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return directory() / purpose / digest / path.name


def absolute(path: Any) -> Any:
    """The path from the root of its disk; one of a bucket always is."""
    return path if is_remote(path) else path.absolute()


def patiently(
    function: Callable[[], Result], path: Any, say: Callable[[str], None] | None = None
) -> Result:
    """Calls a function, and again where storage failed for a moment: six times, over a minute.

    Args:
      function: Reads or writes; may be called several times.
      path: What, for people.
      say: Gets a line about every failure; standard error unless told.

    Raises:
      UserError: there is no right to it, or the last try failed as well.
    """
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    for wait in (*_WAITS, None):
        try:
            return function()
        except Exception as error:  # each client has errors of its own
            if not _passes(error):
                raise _explained(error, path) from error
            if wait is None:
                tries = len(_WAITS) + 1
                text = f"{path}: {_first_line(error)}; {tries} tries failed, start again later"
                raise UserError(text) from error
            wait *= random.uniform(0.5, 1.5)
            say(f"storage: {path}: {_first_line(error)}; trying again in {wait:.1f} s")
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def fetched(name: Any) -> pathlib.Path:
    """A file or folder on this machine; of a bucket a copy, kept for as long as it is the same.

    Of several processes that want it together, one fetches it and the others wait.

    Raises:
      UserError: it is not there, or there is no right to it.
    """
    if not is_remote(name):
        return pathlib.Path(name)
    source = place(name)
    files = patiently(lambda: listed(source), source)
    if not files:
        raise UserError(f"{source} does not exist, or is empty")
    target = beside("fetched", source)
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


def for_arrays(checkpoint: Any) -> Any:
    """Where orbax reads a checkpoint: it does so on a disk and in gs://."""
    return fetched(checkpoint) if str(checkpoint).startswith("s3://") else checkpoint


def put(one: pathlib.Path, other: Any) -> None:
    """Copies a file of this machine to another place."""
    patiently(lambda: _put(one, other), other)


def bring(bucket: Any, folder: pathlib.Path, wanted: Callable[[str], bool]) -> None:
    """Copies what lies in a bucket, as far as it is wanted, over what lies in a folder."""
    names = [name for name in patiently(lambda: listed(bucket), bucket) if wanted(name)]
    _copy([(bucket / name, folder / name) for name in names], _put_whole)


def move(one: Any, other: Any) -> None:
    """Gives a file of a bucket another name in it; the server copies."""
    import fsspec

    storage, name = fsspec.core.url_to_fs(str(one))
    patiently(lambda: storage.mv(name, storage._strip_protocol(str(other))), one)


def clear(folder: Any) -> None:
    """Removes a folder of a bucket as far as it is there."""
    if patiently(folder.exists, folder):
        patiently(folder.rmtree, folder)


@contextlib.contextmanager
def delivered(name: Any, last: str) -> Iterator[pathlib.Path]:
    """A folder on this machine that goes where a person wanted it once it is complete.

    What is on a disk is made where it is wanted. For a bucket the folder is always the same one, so
    that what was stopped goes on; what is there already is not sent again.

    Args:
      name: Where it is wanted.
      last: The file without which the folder is none.
    """
    if not is_remote(name):
        yield pathlib.Path(name)
        return
    target = place(name)
    folder = beside("delivered", target)
    folder.mkdir(parents=True, exist_ok=True)
    if patiently(lambda: (target / last).exists(), target) and not (folder / last).exists():
        _copy([(target / last, folder / last)], _put_whole)
    yield folder
    send(folder, target, last)
    shutil.rmtree(folder.parent)


@contextlib.contextmanager
def sent(name: Any) -> Iterator[pathlib.Path]:
    """A file on this machine that goes where a person wanted it once it is complete."""
    if not is_remote(name):
        yield pathlib.Path(name)
        return
    target = place(name)
    with tempfile.TemporaryDirectory(prefix="bertjax-") as folder:
        file = pathlib.Path(folder) / target.name
        yield file
        put(file, target)


@contextlib.contextmanager
def sent_folder(name: Any) -> Iterator[pathlib.Path]:
    """A folder on this machine whose files go where a person wanted them; a disk's is that one."""
    if not is_remote(name):
        yield pathlib.Path(name)
        return
    with tempfile.TemporaryDirectory(prefix="bertjax-") as folder:
        yield pathlib.Path(folder)
        files = [path for path in sorted(pathlib.Path(folder).iterdir()) if path.is_file()]
        _copy([(path, place(name) / path.name) for path in files], _put)


def send(folder: pathlib.Path, target: Any, last: str) -> None:
    """Copies a folder of this machine into a bucket, and one of its files behind all others."""
    there = patiently(lambda: listed(target), target)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in files}
    missing = {
        name: path
        for name, path in names.items()
        if name != last and there.get(name, (None,))[0] != path.stat().st_size
    }
    print(f"storage: sending {len(missing) + 1} files to {target}", file=sys.stderr, flush=True)
    _copy([(path, target / name) for name, path in missing.items()], _put)
    put(names[last], target / last)


def _put(one: Any, other: Any) -> None:
    import fsspec

    remote = other if is_remote(other) else one
    storage, name = fsspec.core.url_to_fs(str(remote))
    if remote is other:
        storage.put_file(str(one), name)
    else:
        storage.get_file(name, str(other))
        changed = storage.modified(name).timestamp()
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
            pool.submit(patiently, lambda one=one, other=other: copy(one, other), one)
            for one, other in pairs
        ]
        for task in tasks:
            task.result()


def listed(path: Any) -> dict[str, tuple[int, str]]:
    """Size and version of every file of a folder, by its name within; of a file its own, by ""."""
    import fsspec

    storage, root = fsspec.core.url_to_fs(str(path))
    found = {}
    for name, facts in _found(storage, root).items():
        # What ends so stands for a folder that somebody made by hand.
        if not name.endswith("/"):
            version = facts.get("generation") or facts["ETag"]
            found[name.removeprefix(root).lstrip("/")] = facts["size"], str(version)
    return found


def _found(storage: Any, root: str) -> dict[str, dict[str, Any]]:
    try:
        return storage.find(root, detail=True)
    except FileNotFoundError:
        return {}


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


def _passes(error: Exception) -> bool:
    """Whether it may go well a while later."""
    if isinstance(error, PermissionError | FileNotFoundError | FileExistsError):
        return False
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"TimeoutError", "ConnectionError", "HTTPClientError", "ClientConnectionError"}:
        return True
    if isinstance(error, OSError) and error.errno in _PASSING:
        return True
    return _code(error) in _PASSING_CODES


def _code(error: Exception) -> int | None:
    """The status of HTTP, where an error of a library has one."""
    for name in ("code", "status", "status_code"):
        value = getattr(error, name, None)
        if isinstance(value, int | str) and str(value).isdecimal():
            return int(value)
    return None


def _explained(error: Exception, path: Any) -> Exception:
    shut = isinstance(error, PermissionError) or _code(error) in _SHUT_CODES
    if shut or (isinstance(error, OSError) and "Forbidden" in str(error)):
        return UserError(f"no right to {path}: {_first_line(error)}")
    if "Credentials" in type(error).__name__:
        return UserError(f"{path}: {_first_line(error)}: log in as its client's manual says")
    return error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
