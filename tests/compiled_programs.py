"""Let processes that run at the same time share a folder of JAX's compilation cache."""

import os
import pathlib
import threading


def write_atomically() -> None:
    """Replaces how JAX writes an entry of a cache that has no limit of its size.

    JAX writes it in place, so that another process could read an incomplete entry, or find one that
    a killed process has left.
    """
    from jax._src.lru_cache import LRUCache

    LRUCache.put = _put


def _put(cache, key: str, value: bytes) -> None:
    entry = pathlib.Path(cache.path) / f"{key}-cache"
    if not entry.exists():
        unfinished = entry.with_name(f"{key}.{os.getpid()}.{threading.get_ident()}")
        unfinished.write_bytes(value)
        unfinished.replace(entry)
