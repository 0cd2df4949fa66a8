"""Keep JAX's compilation cache on disk between processes."""

import contextlib
import os
import pathlib

from bertjax.io.files import cache_directory
from bertjax.runtime import host

_PROGRAMS, _MOST_BYTES = "JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE"
_USUAL_MOST_BYTES = 4 * 2**30
_NO_LIMIT = "-1"
"""JAX then writes no times, so that nothing tells a whole program from half of one."""
_PROGRAM, _TIME = "-cache", "-atime"
"""How JAX's two files of a program end; the second is written behind the first, under its lock."""


def enable() -> None:
    """Lets JAX find again what it compiled, in a later process; call it before jax is imported.

    What is set already stays: JAX's own variables name another folder or size, and
    JAX_ENABLE_COMPILATION_CACHE=false turns it off. A folder that cannot be made changes nothing.
    Processors of different kinds that share a home keep apart what they compile.
    """
    if _PROGRAMS in os.environ:
        return
    folder = cache_directory() / f"compiled-{host.fingerprint()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    os.environ[_PROGRAMS] = str(folder)
    if os.environ.setdefault(_MOST_BYTES, str(_USUAL_MOST_BYTES)) != _NO_LIMIT:
        with contextlib.suppress(OSError):
            _forget_interrupted(folder)


def _forget_interrupted(folder: pathlib.Path) -> None:
    """Removes what a process was writing when it was killed.

    JAX would warn of it in every start, never replace it, and keep no other program beside it.

    Raises:
      OSError: the folder cannot be read.
    """
    if not _interrupted(folder):
        return
    import filelock

    lock = filelock.FileLock(folder / ".lockfile")
    with contextlib.suppress(filelock.Timeout), lock.acquire(blocking=False):
        for program in _interrupted(folder):
            program.unlink()


def _interrupted(folder: pathlib.Path) -> list[pathlib.Path]:
    names = {path.name for path in folder.iterdir()}
    programs = {name.removesuffix(_PROGRAM) for name in names if name.endswith(_PROGRAM)}
    return [folder / f"{program}{_PROGRAM}" for program in programs if program + _TIME not in names]
