"""The processor and the memory of the host."""

import subprocess
import sys

import jax
import pytest

from bertjax import build
from bertjax.train import host

AMX = "processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16 amx_bf16\n"
AVX2 = "processor\t: 0\nmodel name\t: bf16 in name alone\nflags\t\t: fpu avx2\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n"


@pytest.mark.parametrize(("text", "has"), [(AMX, True), (ARM, True), (AVX2, False), ("", False)])
def test_instructions_for_bfloat16_are_read_off_the_kernels_list(tmp_path, text, has):
    (tmp_path / "cpuinfo").write_text(text)
    assert host.multiplies_bfloat16(tmp_path / "cpuinfo") == has


def test_where_there_is_no_list_nothing_is_promised(tmp_path):
    assert not host.multiplies_bfloat16(tmp_path / "absent")


def test_processors_of_the_same_instructions_share_programs(tmp_path):
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
def test_auto_is_what_the_device_is_fast_in(monkeypatch, backend, has, chosen):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(host, "multiplies_bfloat16", lambda: has)
    assert build.precision("auto") == chosen
    assert build.precision("float32") == "float32"


PAGE_FAULTS = """
import resource, threading
from bertjax.train.host import keep_freed_memory
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


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told")
@pytest.mark.parametrize("where", ["use", "in_a_thread"])
def test_memory_that_was_freed_comes_back_without_page_faults(where):
    program = PAGE_FAULTS.replace("WHERE", where)
    faults = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert int(faults) < 100  # without it: 16,384
