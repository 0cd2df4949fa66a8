"""The host: its processor, memory and accelerators, and settings made before JAX is imported.

Accelerators are found from files of the system: no driver is called and JAX is not imported.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import pathlib
import platform
import sys
import threading
import time
from typing import NamedTuple

_PLATFORMS = "JAX_PLATFORMS"
_TPU_ARGUMENTS = "LIBTPU_INIT_ARGS"
_STACK = "--fibers_default_thread_stack_size"


def list_gpus() -> list[str]:
    """The numbers of NVIDIA's cards."""
    return [str(n) for n, _ in enumerate(pathlib.Path("/proc/driver/nvidia/gpus").glob("*"))]


def list_tpu_chips() -> list[str]:
    """The numbers of TPU chips."""
    found = [*pathlib.Path("/dev").glob("accel[0-9]*"), *pathlib.Path("/dev/vfio").glob("[0-9]*")]
    return [str(n) for n, _ in enumerate(found)]


def skip_absent_tpus() -> None:
    """Has JAX look for no TPU where there is none; call it before jax is imported.

    Where the compiler for TPUs is installed, its runtime is too, which complains at length of every
    machine that is no part of a Cloud TPU. What JAX_PLATFORMS says already stays.
    """
    others = list_gpus() or pathlib.Path("/dev/kfd").exists()
    if _PLATFORMS in os.environ or others or list_tpu_chips():
        return
    if importlib.util.find_spec("libtpu") is not None:
        os.environ[_PLATFORMS] = "cpu"


def enlarge_tpu_compiler_stack() -> None:
    """Has the compiler for TPUs recurse as deep as it needs; call it before that is loaded.

    Its threads have stacks of 64 KiB, which end where a product has two others merged into it: with
    a segmentation fault. What LIBTPU_INIT_ARGS says already stays.
    """
    said = os.environ.get(_TPU_ARGUMENTS, "")
    if _STACK not in said:
        os.environ[_TPU_ARGUMENTS] = f"{said} {_STACK}={4 * 2**20}".strip()


_PROC = pathlib.Path("/proc")
_CPUINFO = _PROC / "cpuinfo"
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
# What Linux calls the instructions: on x86 (two of these) and on ARM.
_BFLOAT16 = {"amx_bf16", "avx512_bf16", "bf16"}

# malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_NEVER = -1
_TOP_PAD_BYTES = 64 * 2**20

MIN_FREE_SHARE = 0.25
"""Of the machine's memory: where less is free, nothing is kept."""

MAX_RESIDENT_RATIO = 1.5
"""Times the most that was in use at a time, and a gigabyte: more is not kept."""

_GIGABYTE = 2**30

_SECONDS_BETWEEN_LOOKS = 0.25
_COUNTING = 0.01
"""Of the time, at most, what is in use is counted: nobody else gets memory meanwhile."""


class Memory(NamedTuple):
    """Bytes that this process may have in all, and those that nobody uses yet."""

    total: int
    free: int


def has_bfloat16_matmul(cpuinfo: pathlib.Path = _CPUINFO) -> bool:
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


def read_memory(proc: pathlib.Path = _PROC, cgroups: pathlib.Path = _CGROUPS) -> Memory:
    """Of the machine, or of the container or job with the least left, as Linux tells it.

    Raises:
      OSError: nobody tells.
    """
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines}
    found = [Memory(kilobytes["MemTotal:"] * 1024, kilobytes["MemAvailable:"] * 1024)]
    group = cgroups / (proc / "self/cgroup").read_text().partition("0::/")[2].strip()
    while group.is_relative_to(cgroups):
        # A group without a limit says "max"; the outermost has no such file.
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / "memory.max").read_text())
            facts = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
            used = int((group / "memory.current").read_text()) - int(facts["inactive_file"])
            found.append(Memory(limit, limit - used))
        group = group.parent
    return min(found, key=lambda each: each.free)


@functools.cache  # a second thread would only get in the way of the first
def keep_freed_memory() -> None:
    """Lets glibc keep for the next step of training what a step has freed, while there is room.

    By itself it gives every large array back to the kernel, which clears page after page when the
    next step asks for as much again. Memory of threads that have arenas of their own is given back
    even so: threads that begin after this have one for all. What one shape of batches left is often
    too small for another, and the next one new: a thread gives back what was freed where memory
    gets scarce, or where that is too much. Does nothing with another C library.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    libc.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
    name = "bertjax memory"
    threading.Thread(target=_give_back, args=(libc,), name=name, daemon=True).start()


def _give_back(libc: ctypes.CDLL) -> None:
    most, again = 0, time.monotonic()
    with contextlib.suppress(OSError):
        while True:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            if (began := time.monotonic()) >= again:
                most = max(most, _in_use(libc))
                again = began + (time.monotonic() - began) / _COUNTING
            now = read_memory()
            scarce = now.free < MIN_FREE_SHARE * now.total
            if scarce or _resident() > MAX_RESIDENT_RATIO * most + _GIGABYTE:
                libc.malloc_trim(0)


class _MallocInfo(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    _fields_ = tuple((name, ctypes.c_size_t) for name in (*_names, "fordblks", "keepcost"))


def _in_use(libc: ctypes.CDLL) -> int:
    """Bytes that were asked for and not freed; without limit where glibc is too old to tell."""
    if not hasattr(libc, "mallinfo2"):
        return sys.maxsize
    libc.mallinfo2.restype = _MallocInfo
    return libc.mallinfo2().uordblks


def _resident(proc: pathlib.Path = _PROC) -> int:
    """Bytes of memory that hold no file."""
    lines = (proc / "self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
