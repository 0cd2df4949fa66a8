"""The processor and the memory of this machine, where JAX computes on the host itself."""

import ctypes
import hashlib
import pathlib
import platform
import sys

_CPUINFO = pathlib.Path("/proc/cpuinfo")
# What Linux calls the instructions: on x86 (two of these) and on ARM.
_BFLOAT16 = {"amx_bf16", "avx512_bf16", "bf16"}

# malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_NEVER = -1
_TOP_PAD_BYTES = 64 * 2**20


def multiplies_bfloat16(cpuinfo: pathlib.Path = _CPUINFO) -> bool:
    """Whether this processor has instructions for products of bfloat16 matrices.

    Without them XLA turns operands to bfloat16 and back, for nothing. False where nobody knows.
    """
    return not _BFLOAT16.isdisjoint(_instructions(cpuinfo))


def fingerprint(cpuinfo: pathlib.Path = _CPUINFO) -> str:
    """Of what programs for this processor may be made of: two that agree can share them."""
    words = [platform.machine(), *sorted(_instructions(cpuinfo))]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def _instructions(cpuinfo: pathlib.Path) -> list[str]:
    """As the kernel lists them; none where nobody knows."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return value.split()
    return []


def keep_freed_memory() -> None:
    """Lets glibc keep for the next step of training what a step has freed.

    By itself it gives every large array back to the kernel, which clears page after page when the
    next step asks for as much again. Memory of threads that have arenas of their own is given back
    even so: threads that begin after this have one for all. Does nothing with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
    mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
