"""Paths in buckets (gs://, s3://) and on local disks, with retries of failed requests.

  to_path         a user's string -> a path object, local or of a bucket
  with_retries    call a function again after a temporary failure of the storage
  list_files      sizes and versions of the files in a folder of a bucket
  check_host      fail at once, in one line, without a network
  make_folder, check_file, check_folder    refuse unwritable paths before any work is done

A path of a bucket (`etils.epath`) has the methods of `pathlib`; each call is a network request.
"""

import errno
import functools
import logging
import os
import pathlib
import random
import re
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from bertjax.errors import TemporaryError, UserError

_EXTRAS = {"gs": "gcs", "s3": "s3"}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")

_RETRY_DELAYS = (1, 2, 4, 8, 16, 32)
"""Seconds before each retry, multiplied by a random factor from 0.5 to 1.5."""

_TEMPORARY_ERRORS = {
    *("TimeoutError", "ConnectionError"),  # of Python
    *("HTTPClientError", "ClientConnectionError", "TransportError"),  # of S3, Google Cloud, the Hub
}
_GCS_HOST = "storage.googleapis.com"
_TEMPORARY_STATUS = {408, 429, 500, 502, 503, 504}
_DENIED_STATUS = {401, 403}
_TEMPORARY_ERRNO = {
    *(errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET),
    *(errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EREMOTEIO),
}

Result = TypeVar("Result")


def is_remote(name: Any) -> bool:
    """Whether a path is a URL, such as one of a bucket."""
    return _SCHEME.match(str(name)) is not None


def to_path(name: Any) -> Any:
    """Convert a user's string to a `pathlib.Path`, or to an `etils.epath.Path` for a bucket.

    Raises:
      UserError: The string is empty, its URL scheme is not supported, or the package for the
        scheme is not installed.
    """
    if not str(name):
        raise UserError("got an empty path, expected the path of a file or folder")
    scheme = _SCHEME.match(str(name))
    if scheme is None:
        return pathlib.Path(name)
    if scheme[1] not in _EXTRAS:
        known = ", ".join(f"{name}://" for name in _EXTRAS)
        raise UserError(
            f"unsupported path: got {name}, expected a local path or one that starts with {known}"
        )
    try:
        disable_listings_cache()
        check_host(str(name))
        from etils import epath

        path = epath.Path(str(name))
        with_retries(path.exists, path)
    except ImportError:
        raise UserError(
            f"{name}: {scheme[1]}:// requires a package: pip install "
            f"'bertjax[{_EXTRAS[scheme[1]]}]'"
        ) from None
    return path


def disable_listings_cache() -> None:
    """Disable fsspec's cache of listings: other hosts of a run write to the same folders."""
    from fsspec import config

    for protocol in ("gs", "gcs", "s3"):
        config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)


def check_host(url: str) -> None:
    """Check that the name of the host of a gs:// URL can be resolved; once per process.

    The client of Google Cloud Storage treats every such failure as temporary, and reports a file
    that it cannot look up as missing.

    Raises:
      UserError: There is no network, or its name server does not know the host.
    """
    proxied = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    if url.startswith("gs://") and not proxied and not os.environ.get("STORAGE_EMULATOR_HOST"):
        try:
            with_retries(_resolve_host, url)
        except socket.gaierror as error:
            raise UserError(
                f"{url}: cannot resolve the host {_GCS_HOST}: {error.strerror}; check the network"
            ) from None


@functools.cache
def _resolve_host() -> None:
    try:
        socket.getaddrinfo(_GCS_HOST, 443)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise ConnectionError(f"cannot resolve {_GCS_HOST}: {error.strerror}") from None
        raise


def _without_traceback(record: logging.LogRecord) -> bool:
    """A filter of log records that removes their tracebacks."""
    record.exc_info = None
    return True


# The client logs the tracebacks of requests that `with_retries` sends again.
logging.getLogger("gcsfs").addFilter(_without_traceback)


def absolute(path: Any) -> Any:
    """Make a local path absolute; a path of a bucket always is."""
    return path if is_remote(path) else path.absolute()


def with_retries(
    function: Callable[[], Result], path: Any, log: Callable[[str], None] | None = None
) -> Result:
    """Call a function, with up to six retries over about a minute after temporary failures.

    Args:
      function: Reads or writes; must be safe to call several times.
      path: The path it uses, for messages.
      log: Called with a line for every failure; prints to standard error by default.

    Raises:
      UserError: Access is denied.
      TemporaryError: The last retry failed too.
    """
    log = log or (lambda line: print(line, file=sys.stderr, flush=True))
    for delay in (*_RETRY_DELAYS, None):
        try:
            return function()
        except Exception as error:  # each client has its own errors
            if not _is_temporary(error):
                raise _to_user_error(error, path) from error
            if delay is None:
                raise TemporaryError(
                    f"{path}: {_first_line(error)}; {len(_RETRY_DELAYS) + 1} attempts failed, run "
                    "the command again later"
                ) from error
            delay *= random.uniform(0.5, 1.5)
            log(f"storage: {path}: {_first_line(error)}; retrying in {delay:.1f} s")
            time.sleep(delay)
    raise AssertionError("the last attempt returns or raises")


def make_folder(folder: Any) -> None:
    """Create a folder and its parents.

    Raises:
      UserError: The folder cannot be created; the message contains the system's reason.
    """
    try:
        with_retries(lambda: folder.mkdir(parents=True, exist_ok=True), folder)
    except OSError as error:
        is_file = isinstance(error, FileExistsError)
        reason = "a file has this name" if is_file else error.strerror
        raise UserError(f"cannot create the folder {folder}: {reason}; give another one") from None


def check_folder(folder: Any) -> None:
    """Check that a folder exists or can be created; may create its parents.

    Raises:
      UserError: The folder cannot be created; the message contains the system's reason.
    """
    if is_remote(folder) or os.path.isdir(folder):
        return
    make_folder(folder)
    folder.rmdir()


def check_file(path: Any) -> None:
    """Check that a file can be written, and create the folders above it.

    Raises:
      UserError: The file cannot be written; the message contains the system's reason.
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
        raise UserError(f"cannot write {path}: {error.strerror}; give another file") from None


def move(source: Any, target: Any) -> None:
    """Rename a file within a bucket; the server copies it."""
    import fsspec

    client, old_name = fsspec.core.url_to_fs(str(source))
    _, new_name = fsspec.core.url_to_fs(str(target))
    with_retries(lambda: client.mv(old_name, new_name), source)


def remove_folder(folder: Any) -> None:
    """Remove a folder of a bucket if it exists."""
    if with_retries(folder.exists, folder):
        with_retries(folder.rmtree, folder)


def list_files(path: Any) -> dict[str, tuple[int, str]]:
    """List (size, version) of the files in a folder of a bucket, by name relative to it.

    The name of a file that is itself given as `path` is "".
    """
    import fsspec

    client, root = fsspec.core.url_to_fs(str(path))
    files = {}
    for name, details in _find_objects(client, root).items():
        # A name with a slash at its end is the marker of an empty folder.
        if not name.endswith("/"):
            version = details.get("generation") or details["ETag"]
            files[name.removeprefix(root).lstrip("/")] = details["size"], str(version)
    return files


def _find_objects(client: Any, root: str) -> dict[str, dict[str, Any]]:
    try:
        return client.find(root, detail=True)
    except FileNotFoundError:
        return {}


def _is_temporary(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, PermissionError | FileNotFoundError | FileExistsError):
        return False
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & _TEMPORARY_ERRORS:
        return True
    if isinstance(error, OSError) and error.errno in _TEMPORARY_ERRNO:
        return True
    return _http_status(error) in _TEMPORARY_STATUS


def _http_status(error: Exception) -> int | None:
    """The HTTP status that a client's error carries, or None."""
    response = getattr(error, "response", None)
    for name in ("code", "status", "status_code"):
        value = getattr(error, name, getattr(response, name, None))
        if isinstance(value, int | str) and str(value).isdecimal():
            return int(value)
    return None


def _to_user_error(error: Exception, path: Any) -> Exception:
    denied = isinstance(error, PermissionError) or _http_status(error) in _DENIED_STATUS
    if denied or (isinstance(error, OSError) and "Forbidden" in str(error)):
        return UserError(f"access to {path} is denied: {_first_line(error)}; check the permissions")
    if "Credentials" in type(error).__name__:
        return UserError(f"no credentials for {path}: {_first_line(error)}; log in to its storage")
    return error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
