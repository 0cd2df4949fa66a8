"""Share JAX's compilation cache between processes, in a folder on disk.

The folder is set by an environment variable before jax is imported: so it applies to every verb and
to the processes that a verb starts, and a user's own setting takes precedence.
"""

import contextlib
import os
import pathlib

from bertjax.io.files import cache_directory
from bertjax.runtime import host

_FOLDER, _MAX_BYTES = "JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE"
_DEFAULT_MAX_BYTES = 4 * 2**30
_NO_LIMIT = "-1"
"""Without a limit JAX writes no access times, so incomplete entries cannot be recognised."""
_PROGRAM, _TIME = "-cache", "-atime"
"""Name endings of the two files of an entry; JAX writes the access time last, under its lock."""


def enable() -> None:
    """Enable JAX's persistent compilation cache; call this before jax is imported.

    Environment variables of JAX that are already set take precedence, and
    JAX_ENABLE_COMPILATION_CACHE=false disables the cache. If the folder cannot be created, JAX runs
    without a cache. The folder's name contains a hash of the processor's instruction set, because
    machines with different processors may share a home directory.
    """
    if _FOLDER in os.environ:
        return
    folder = cache_directory() / f"compiled-{host.fingerprint()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    os.environ[_FOLDER] = str(folder)
    if os.environ.setdefault(_MAX_BYTES, str(_DEFAULT_MAX_BYTES)) != _NO_LIMIT:
        with contextlib.suppress(OSError):
            _remove_incomplete(folder)


def _remove_incomplete(folder: pathlib.Path) -> None:
    """Remove entries that a killed process left incomplete.

    JAX neither completes nor replaces such an entry: it warns of it at every start and stops
    writing new entries to the cache.

    Raises:
      OSError: The folder cannot be read.
    """
    if not _find_incomplete(folder):
        return
    import filelock

    lock = filelock.FileLock(folder / ".lockfile")
    with contextlib.suppress(filelock.Timeout), lock.acquire(blocking=False):
        for program in _find_incomplete(folder):
            program.unlink()


def _find_incomplete(folder: pathlib.Path) -> list[pathlib.Path]:
    names = {path.name for path in folder.iterdir()}
    programs = {name.removesuffix(_PROGRAM) for name in names if name.endswith(_PROGRAM)}
    return [folder / f"{program}{_PROGRAM}" for program in programs if program + _TIME not in names]
