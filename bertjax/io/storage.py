"""Paths in buckets (gs://, s3://) next to local ones: list, read, retry.

place      what the user wrote -> a path, of a disk or of a bucket
with_retries  repeats an operation of storage that failed, after a pause
listed     what lies in a folder of a bucket, with sizes and versions
make_folder, check_file, check_folder   refuse, before any work, a place that cannot be written

A path of a bucket (`etils.epath`) has the methods of `pathlib`, but what costs a request each time.
"""

import errno
import os
import pathlib
import random
import re
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

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

Result = TypeVar("Result")


def is_remote(name: Any) -> bool:
    """Whether a path is a URL."""
    return _SCHEME.match(str(name)) is not None


def to_path(name: Any) -> Any:
    """The path that the user means.

    Raises:
      UserError: it is empty, or a URL of a kind that is not known, or for which a package is
        missing.
    """
    if not str(name):
        raise UserError("got an empty path, expected the name of a file or folder")
    scheme = _SCHEME.match(str(name))
    if scheme is None:
        return pathlib.Path(name)
    if scheme[1] not in _EXTRAS:
        known = ", ".join(f"{name}://" for name in _EXTRAS)
        raise UserError(f"{name}: expected a path, or one that begins with {known}")
    try:
        _forget_listings()
        from etils import epath

        path = epath.Path(str(name))
        with_retries(path.exists, path)
    except ImportError:
        raise UserError(
            f"{name}: {scheme[1]}:// requires a package: pip install "
            f"'bertjax[{_EXTRAS[scheme[1]]}]'"
        ) from None
    return path


def _forget_listings() -> None:
    """Has clients ask anew each time: other machines of a run write there too."""
    from fsspec import config

    for protocol in ("gs", "gcs", "s3"):
        config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)


def absolute(path: Any) -> Any:
    """The path from the root of its disk; one of a bucket always is."""
    return path if is_remote(path) else path.absolute()


def with_retries(
    function: Callable[[], Result], path: Any, log: Callable[[str], None] | None = None
) -> Result:
    """Calls a function, and again where storage failed for a moment: six times, over a minute.

    Args:
      function: Reads or writes; may be called several times.
      path: What, for users.
      log: Gets a line about every failure; standard error unless told.

    Raises:
      UserError: there is no right to it, or the last try failed as well.
    """
    log = log or (lambda line: print(line, file=sys.stderr, flush=True))
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
            log(f"storage: {path}: {_first_line(error)}; trying again in {wait:.1f} s")
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def make_folder(folder: Any) -> None:
    """Makes a folder and those above it.

    Raises:
      UserError: with the system's reason why that cannot be.
    """
    try:
        with_retries(lambda: folder.mkdir(parents=True, exist_ok=True), folder)
    except OSError as error:
        reason = "a file is there" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"cannot make the folder {folder}: {reason}; name another one") from None


def check_folder(folder: Any) -> None:
    """Checks that a folder is there or can be made; leaves only the folders above it behind.

    Raises:
      UserError: with the system's reason why that cannot be.
    """
    if is_remote(folder) or os.path.isdir(folder):
        return
    make_folder(folder)
    folder.rmdir()


def check_file(path: Any) -> None:
    """Checks that a file can be written, and makes the folders above it.

    Raises:
      UserError: with the system's reason why that cannot be.
    """
    if is_remote(path):
        return
    make_folder(path.absolute().parent)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not path.exists():
            path.touch()
            path.unlink()
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file") from None


def move(one: Any, other: Any) -> None:
    """Gives a file of a bucket another name in it; the server copies."""
    import fsspec

    client, name = fsspec.core.url_to_fs(str(one))
    _, new = fsspec.core.url_to_fs(str(other))
    with_retries(lambda: client.mv(name, new), one)


def remove_folder(folder: Any) -> None:
    """Removes a folder of a bucket as far as it is there."""
    if with_retries(folder.exists, folder):
        with_retries(folder.rmtree, folder)


def list_files(path: Any) -> dict[str, tuple[int, str]]:
    """Size and version of every file of a folder, by its name within; of a file its own, by ""."""
    import fsspec

    client, root = fsspec.core.url_to_fs(str(path))
    found = {}
    for name, facts in _found(client, root).items():
        # What ends so stands for a folder that somebody made by hand.
        if not name.endswith("/"):
            version = facts.get("generation") or facts["ETag"]
            found[name.removeprefix(root).lstrip("/")] = facts["size"], str(version)
    return found


def _found(client: Any, root: str) -> dict[str, dict[str, Any]]:
    try:
        return client.find(root, detail=True)
    except FileNotFoundError:
        return {}


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
