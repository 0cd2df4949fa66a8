"""What several runs of a person share, and anybody may delete: `~/.cache/bertjax`.

Tokenizers and corpora that runs make of raw text lie there (`bertjax.data.cache`), and programs
that JAX has compiled.
"""

import os
import pathlib

from bertjax.train import host

ENVIRONMENT = "BERTJAX_CACHE"
"""Names another folder."""

_PROGRAMS, _MOST_BYTES = "JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE"
_USUAL_MOST_BYTES = 4 * 2**30


def directory(named: str = "") -> pathlib.Path:
    """The folder: the one named, else the environment's, else the user's."""
    home = pathlib.Path.home() / ".cache" / "bertjax"
    return pathlib.Path(named or os.environ.get(ENVIRONMENT) or home)


def keep_compiled_programs() -> None:
    """Lets JAX find again what it compiled, in a later process; call it before jax is imported.

    What is set already stays: JAX's own variables name another folder or size, and
    JAX_ENABLE_COMPILATION_CACHE=false turns it off. A folder that cannot be made changes nothing.
    Processors of different kinds that share a home keep apart what they compile.
    """
    if _PROGRAMS in os.environ:
        return
    folder = directory() / f"compiled-{host.fingerprint()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    os.environ[_PROGRAMS] = str(folder)
    os.environ.setdefault(_MOST_BYTES, str(_USUAL_MOST_BYTES))
