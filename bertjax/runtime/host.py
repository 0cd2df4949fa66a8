"""Inspect the host (processor, memory, accelerators) and tune it for JAX.

Everything is read from the operating system's files: no driver is called and JAX is not imported,
since some settings must be made before that.
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
    """List the indices of NVIDIA GPUs."""
    return [str(n) for n, _ in enumerate(pathlib.Path("/proc/driver/nvidia/gpus").glob("*"))]


def list_tpu_chips() -> list[str]:
    """List the indices of TPU chips."""
    found = [*pathlib.Path("/dev").glob("accel[0-9]*"), *pathlib.Path("/dev/vfio").glob("[0-9]*")]
    return [str(n) for n, _ in enumerate(found)]


def skip_absent_tpus() -> None:
    """Set JAX_PLATFORMS=cpu on a machine without accelerators; call this before jax is imported.

    The package of the TPU compiler contains the TPU runtime as well, which JAX would otherwise try
    to start, with pages of warnings on a machine without TPUs. An existing JAX_PLATFORMS is kept.
    """
    others = list_gpus() or pathlib.Path("/dev/kfd").exists()
    if _PLATFORMS in os.environ or others or list_tpu_chips():
        return
    if importlib.util.find_spec("libtpu") is not None:
        os.environ[_PLATFORMS] = "cpu"


def enlarge_tpu_compiler_stack() -> None:
    """Give the TPU compiler's threads stacks of 4 MiB; call this before libtpu is loaded.

    With the default of 64 KiB the compiler overflows its stack, a segmentation fault, for a matmul
    into which two others are fused. An existing value in LIBTPU_INIT_ARGS is kept.
    """
    arguments = os.environ.get(_TPU_ARGUMENTS, "")
    if _STACK not in arguments:
        os.environ[_TPU_ARGUMENTS] = f"{arguments} {_STACK}={4 * 2**20}".strip()


_PROC = pathlib.Path("/proc")
_CPUINFO = _PROC / "cpuinfo"
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
# Linux's names of the instruction sets: two of x86 and one of ARM.
_BFLOAT16 = {"amx_bf16", "avx512_bf16", "bf16"}

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_UNLIMITED = -1
_TOP_PAD_BYTES = 64 * 2**20
_PRELOADED = ("mallctl", "tc_version", "mi_version")
"""A function of each allocator that can replace glibc's: jemalloc, tcmalloc, mimalloc."""

_MADV_HUGEPAGE = 14  # from the kernel's mman.h
_HUGE_PAGE = 2 * 2**20

MIN_FREE_SHARE = 0.25
"""Freed memory is returned to the kernel while less than this share of all memory is free."""

MAX_RESIDENT_RATIO = 3
"""Freed memory is returned to the kernel while the process holds more than this multiple of the
highest number of bytes in use so far, plus a gigabyte."""

_GIGABYTE = 2**30

_POLL_SECONDS = 0.25
_MAX_COUNTING_SHARE = 0.01
"""Largest share of time spent counting bytes in use, which blocks allocation in all threads."""


class Memory(NamedTuple):
    """Bytes that this process can have in total, and those that are still free."""

    total: int
    free: int


def has_bfloat16_matmul(cpuinfo: pathlib.Path = _CPUINFO) -> bool:
    """Whether the processor has instructions for bfloat16 matmuls; False if that is unknown.

    Without them XLA converts operands to bfloat16 and back, which costs time and gains nothing.
    `precision="auto"` depends on this.
    """
    return not _BFLOAT16.isdisjoint(_instructions(cpuinfo))


def fingerprint(cpuinfo: pathlib.Path = _CPUINFO) -> str:
    """Hash the architecture and instruction sets: hosts with equal hashes can share programs."""
    words = [platform.machine(), *sorted(_instructions(cpuinfo))]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def _instructions(cpuinfo: pathlib.Path) -> list[str]:
    """The kernel's list of instruction sets; empty if it cannot be read."""
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
    """Read total and free memory of the machine, or of the cgroup with the least free memory.

    Raises:
      OSError: The files of /proc cannot be read; only Linux has them.
    """
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines}
    found = [Memory(kilobytes["MemTotal:"] * 1024, kilobytes["MemAvailable:"] * 1024)]
    group = cgroups / (proc / "self/cgroup").read_text().partition("0::/")[2].strip()
    while group.is_relative_to(cgroups):
        # The limit is "max" for a cgroup without one; the root cgroup has no such file.
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / "memory.max").read_text())
            usage = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
            used = int((group / "memory.current").read_text()) - int(usage["inactive_file"])
            found.append(Memory(limit, limit - used))
        group = group.parent
    return min(found, key=lambda each: each.free)


def tune_for_cpu() -> None:
    """Call `keep_freed_memory` if JAX will compute on the host; call this before JAX starts.

    JAX starts its threads when it is first asked for devices. Those that exist already allocate
    large arrays outside the heap, without huge pages.
    """
    on_cpu = os.environ.get(_PLATFORMS) == "cpu" or not (list_gpus() or list_tpu_chips())
    if on_cpu:
        keep_freed_memory()


@functools.cache  # one thread is enough for the process
def keep_freed_memory() -> None:
    """Let glibc reuse the memory that a training step freed, and allocate it in huge pages.

    By default glibc returns every large array to the kernel, which then has to clear each page
    again when the next step allocates as much. With this setting the process keeps freed memory.
    It may be fragmented too much for batches of another shape, so a thread returns it when memory
    gets scarce or the process holds too much (MIN_FREE_SHARE, MAX_RESIDENT_RATIO). glibc returns
    the memory of per-thread arenas in any case: threads started after this call share one arena.

    Huge pages reduced a step of BERT-mini on two cores from 0.78 to 0.57 s. Linux has them for all
    memory, on demand or never (`/sys/kernel/mm/transparent_hugepage/enabled`).

    With an allocator in LD_PRELOAD, such as tcmalloc, only requests huge pages: its settings decide
    when it returns memory. Does nothing with another C library.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "mallopt"):
        return
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if any(hasattr(libc, function) for function in _PRELOADED):
        _extend_heap(libc)
        return
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, _UNLIMITED)
    libc.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
    _extend_heap(libc)
    name = "bertjax memory"
    threading.Thread(target=_trim_periodically, args=(libc,), name=name, daemon=True).start()


def _extend_heap(libc: ctypes.CDLL) -> None:
    """Extend the heap by half of the free memory, with huge pages, which nothing uses yet."""
    if (_PROC / "sys/vm/overcommit_memory").read_text().strip() == "2":
        return  # other processes could not allocate what this one only reserves
    size = read_memory().free // 2
    address = libc.malloc(size)
    if address:
        begin = -(-address // _HUGE_PAGE) * _HUGE_PAGE
        libc.madvise(begin, max(0, address + size - begin), _MADV_HUGEPAGE)
        libc.free(address)


def _trim_periodically(libc: ctypes.CDLL) -> None:
    most, next_count = 0, time.monotonic()
    with contextlib.suppress(OSError):
        while True:
            time.sleep(_POLL_SECONDS)
            if (start := time.monotonic()) >= next_count:
                most = max(most, _bytes_in_use(libc))
                next_count = start + (time.monotonic() - start) / _MAX_COUNTING_SHARE
            memory = read_memory()
            scarce = memory.free < MIN_FREE_SHARE * memory.total
            if scarce or _resident_bytes() > MAX_RESIDENT_RATIO * most + _GIGABYTE:
                libc.malloc_trim(0)
                _extend_heap(libc)


class _MallocInfo(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    _fields_ = tuple((name, ctypes.c_size_t) for name in (*_names, "fordblks", "keepcost"))


def _bytes_in_use(libc: ctypes.CDLL) -> int:
    """Bytes that were allocated and not freed; sys.maxsize if glibc is older than 2.33."""
    if not hasattr(libc, "mallinfo2"):
        return sys.maxsize
    libc.mallinfo2.restype = _MallocInfo
    return libc.mallinfo2().uordblks


def _resident_bytes(proc: pathlib.Path = _PROC) -> int:
    """Bytes of physical memory that the process holds, without mapped files."""
    lines = (proc / "self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
