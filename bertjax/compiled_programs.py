"""What JAX compiled, kept from one process to the next, beside what else runs share."""

import os

from bertjax.data.cache_folder import directory
from bertjax.train import host

_PROGRAMS, _MOST_BYTES = "JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE"
_USUAL_MOST_BYTES = 4 * 2**30


def keep() -> None:
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
