"""Inspection of processor and memory, and memory that is kept between steps."""

import pathlib
import subprocess
import sys
import unittest.mock

import jax
import pytest

import bertjax
from bertjax import build
from bertjax.runtime import host

AMX = "processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16 amx_bf16\n"
AVX2 = "processor\t: 0\nmodel name\t: bf16 in name alone\nflags\t\t: fpu avx2\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n"


@pytest.mark.parametrize(("text", "has"), [(AMX, True), (ARM, True), (AVX2, False), ("", False)])
def test_bfloat16_instructions_are_read_from_cpuinfo(tmp_path, text, has):
    (tmp_path / "cpuinfo").write_text(text)
    assert host.has_bfloat16_matmul(tmp_path / "cpuinfo") == has


def test_without_cpuinfo_there_are_no_bfloat16_matmuls(tmp_path):
    assert not host.has_bfloat16_matmul(tmp_path / "absent")


def test_processors_with_equal_instruction_sets_have_equal_fingerprints(tmp_path):
    def fingerprint(text):
        (tmp_path / "cpuinfo").write_text(text)
        return host.fingerprint(tmp_path / "cpuinfo")

    assert fingerprint(AVX2) == fingerprint(AVX2.replace("fpu avx2", "avx2 fpu"))
    assert len({fingerprint(text) for text in (AMX, AVX2, ARM, "")}) == 4
    assert host.fingerprint(tmp_path / "absent") == fingerprint("")


@pytest.mark.parametrize(
    ("backend", "has", "chosen"),
    [
        ("tpu", False, "bfloat16"),
        ("gpu", False, "bfloat16"),
        ("cpu", True, "bfloat16_operands"),
        ("cpu", False, "float32"),
    ],
)
def test_auto_precision_is_the_fastest_of_the_device(monkeypatch, backend, has, chosen):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(host, "has_bfloat16_matmul", lambda: has)
    assert build.precision({"name": "bert", "precision": "auto"}) == chosen
    assert build.precision({"name": "bert", "precision": "float32"}) == "float32"


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")

PAGE_FAULTS = """
import resource, threading
from bertjax.runtime.host import keep_freed_memory
keep_freed_memory()
def use():
    array = b"x" * (64 * 2**20)
    del array
def in_a_thread():
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    WHERE()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@on_linux
@pytest.mark.parametrize("where", ["use", "in_a_thread"])
def test_freed_memory_is_reused_without_page_faults(where):
    program = PAGE_FAULTS.replace("WHERE", where)
    faults = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert int(faults) < 100  # without it: 16,384


@on_linux
@pytest.mark.parametrize("allocator", ["", "mallctl", "tc_version", "mi_version"])
def test_an_allocator_in_ld_preload_keeps_its_settings(monkeypatch, allocator):
    class Libc:
        """C library that records which of its functions were called."""

        def __init__(self):
            self.called = set()
            for name in ("mallopt", "malloc", "free", "madvise", allocator):
                setattr(self, name, self._function(name))

        def _function(self, name):
            return unittest.mock.Mock(
                side_effect=lambda *_: self.called.add(name) or 2**32, spec=["argtypes", "restype"]
            )

    libc, threads = Libc(), unittest.mock.Mock()
    monkeypatch.setattr(host.ctypes, "CDLL", lambda name: libc)
    monkeypatch.setattr(host.threading, "Thread", threads)
    host.keep_freed_memory.__wrapped__()
    assert {"malloc", "madvise", "free"} <= libc.called
    assert ("mallopt" in libc.called) == threads.called == (not allocator)


NEW_PAGES = """
import pathlib, sys
from bertjax.runtime import host
host._PROC = pathlib.Path(sys.argv[1])
host.keep_freed_memory()
array = b"x" * (256 * 2**20)
lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("AnonHugePages:")))
"""

HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="needs huge pages"
)
def test_new_memory_has_huge_pages(tmp_path):
    (tmp_path / "sys/vm").mkdir(parents=True)
    kilobytes = {}
    for overcommit in ("0", "2"):
        (tmp_path / "sys/vm/overcommit_memory").write_text(overcommit + "\n")
        program = [sys.executable, "-c", NEW_PAGES, tmp_path]
        shown = subprocess.run(program, capture_output=True, text=True, check=True).stdout
        kilobytes[overcommit] = int(shown)
    # 256 MiB, or less where memory is fragmented; without overcommitment no heap is reserved.
    assert kilobytes["0"] > kilobytes["2"] + 16 * 1024


@pytest.mark.parametrize(
    ("gpus", "platforms", "tuned"),
    [([], "", True), (["0"], "", False), (["0"], "cpu", True), (["0"], "cuda,cpu", False)],
)
def test_memory_is_tuned_where_jax_computes_on_the_host(monkeypatch, gpus, platforms, tuned):
    calls = []
    monkeypatch.setattr(host, "keep_freed_memory", lambda: calls.append(1))
    monkeypatch.setattr(host, "list_gpus", lambda: gpus)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    host.tune_for_cpu()
    assert bool(calls) == tuned


@pytest.mark.parametrize(
    "train",
    [
        lambda: bertjax.pretrain(None, ""),
        lambda: bertjax.finetune(None, init="", data="", workdir=""),
    ],
)
def test_training_from_python_tunes_memory_before_it_starts_jax(monkeypatch, train):
    class CalledError(Exception):
        pass

    def tune_for_cpu():
        raise CalledError

    monkeypatch.setattr(host, "tune_for_cpu", tune_for_cpu)
    with pytest.raises(CalledError):
        train()


REPEATED_CALLS = """
import threading
from bertjax.runtime import host
for _ in range(3):
    host.keep_freed_memory()
print([thread.name for thread in threading.enumerate()].count("bertjax memory"))
"""


def test_repeated_calls_start_one_thread():
    """Every thread would block allocation while it counts. Without glibc none is started."""
    threads = subprocess.run(
        [sys.executable, "-c", REPEATED_CALLS], capture_output=True, text=True, check=True
    ).stdout
    assert int(threads) == (sys.platform == "linux")


TRIMMED = """
import pathlib, sys, time
from bertjax.runtime import host
free, host.MAX_RESIDENT_RATIO, host._GIGABYTE, seconds = map(float, sys.argv[1:])
host.read_memory = lambda: host.Memory(total=4, free=int(free))
host.keep_freed_memory()
arrays = [b"x" * 2**20 for _ in range(128)]
last = arrays.pop()
del arrays
end = time.monotonic() + seconds
while host._resident_bytes() > 100 * 2**20 and time.monotonic() < end:
    time.sleep(0.01)
print(host._resident_bytes())
"""


@on_linux
@pytest.mark.parametrize(
    ("free", "too_much", "kept"),
    [("1", ("1.5", "1e9"), True), ("0", ("1.5", "1e9"), False), ("1", ("0", "5e7"), False)],
)
def test_freed_memory_is_kept_unless_memory_is_scarce_or_too_much_is_held(free, too_much, kept):
    program = [sys.executable, "-c", TRIMMED, free, *too_much, "1" if kept else "20"]
    resident = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert (int(resident) > 100 * 2**20) == kept


GIGABYTE = 2**30


@pytest.fixture
def machine(tmp_path):
    """A machine of 64 GB, half of it free, with a cgroup of 8 GB inside one without a limit."""
    (tmp_path / "proc/self").mkdir(parents=True)
    meminfo = "MemTotal: 67108864 kB\nMemFree: 3 kB\nMemAvailable: 33554432 kB\n"
    (tmp_path / "proc/meminfo").write_text(meminfo)
    (tmp_path / "proc/self/cgroup").write_text("1:cpu:/\n0::/slice/job/step\n")
    job = tmp_path / "cgroup/slice/job"
    (job / "step").mkdir(parents=True)
    (job.parent / "memory.max").write_text("max\n")
    (job / "memory.max").write_text(f"{8 * GIGABYTE}\n")
    (job / "memory.current").write_text(f"{7 * GIGABYTE}\n")
    (job / "memory.stat").write_text(f"anon 5\ninactive_file {2 * GIGABYTE}\n")
    return tmp_path


def test_memory_is_that_of_the_cgroup_with_the_least_free(machine):
    def found():
        return host.read_memory(machine / "proc", machine / "cgroup")

    assert found() == (8 * GIGABYTE, 3 * GIGABYTE)
    (machine / "cgroup/slice/job/memory.max").write_text("max\n")
    assert found() == (64 * GIGABYTE, 32 * GIGABYTE)
    (machine / "proc/self/cgroup").write_text("4:memory:/elsewhere\n")
    assert found() == (64 * GIGABYTE, 32 * GIGABYTE)


def test_unknown_memory_raises_an_error(tmp_path):
    with pytest.raises(OSError, match="meminfo"):
        host.read_memory(tmp_path, tmp_path)
