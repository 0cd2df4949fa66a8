"""Compilation in a child process: results, crashes, timeouts."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from bertjax import build
from bertjax.config import load_config, replace_fields
from bertjax.errors import UserError
from bertjax.profiling import plan as profiling_plan
from bertjax.profiling import worker
from bertjax.profiling.search import CompilerDiedError
from bertjax.profiling.worker import CompilerProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def compile_step(tpu_compiler, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with CompilerProcess("v5e:1x1", 1) as started:
        yield started


@pytest.fixture
def config():
    small = {"data.batch_size": 8, "data.max_seq_length": 16, "model.vocab_size": 97}
    config = profiling_plan.resolve_for_tpu(load_config("configs/bert.py:tiny", []))
    return replace_fields(config, {"data.phases": (), "mesh.data": 1, **small})


class CallOnUnpickling:
    """Calls a function in the process that unpickles it."""

    def __init__(self, function, *arguments):
        self._what = function, arguments

    def __reduce__(self):
        return self._what


def test_after_a_crash_the_next_step_is_compiled_by_a_new_process(compile_step, config):
    (phase,) = build.phases(config)
    with pytest.raises(CompilerDiedError, match="ended with status 3; try another mesh"):
        compile_step(CallOnUnpickling(os._exit, 3), phase)
    with pytest.raises(CompilerDiedError, match="ended with SIGKILL; try another mesh"):
        compile_step(CallOnUnpickling(signal.raise_signal, signal.SIGKILL), phase)
    assert compile_step(config, phase).fits


COMPILES_FOR_MINUTES = """
import os, signal, time
from bertjax.profiling.worker import CompilerProcess

class Sleep:
    def __reduce__(self):
        return time.sleep, (600,)

started = CompilerProcess("v5e:1x1", 1)
started._calls.send(Sleep())
print(started._process.pid, flush=True)
signal.raise_signal(signal.SIGTERM)
"""


def test_the_compiler_process_ends_with_a_killed_parent(tpu_compiler, command_environment):
    command = [sys.executable, "-c", COMPILES_FOR_MINUTES]
    with subprocess.Popen(command, env=command_environment, stdout=subprocess.PIPE) as parent:
        child = pathlib.Path(f"/proc/{int(parent.stdout.readline())}")
        assert parent.wait(timeout=60) == -signal.SIGTERM
        end = time.monotonic() + 60
        while child.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert not child.exists()


def test_a_compilation_has_a_timeout(compile_step, monkeypatch):
    monkeypatch.setattr(worker, "_TIMEOUT_HOURS", 0)
    with pytest.raises(CompilerDiedError, match="did not finish within 0 hours"):
        compile_step(CallOnUnpickling(time.sleep, 60), None)


def test_a_user_error_is_raised_unchanged(compile_step, config):
    config = replace_fields(config, {"data.batch_size": 7, "mesh.data": 2})
    (phase,) = build.phases(config)
    with pytest.raises(UserError, match=r"config\.mesh: got data=2") as raised:
        compile_step(config, phase)
    assert type(raised.value) is UserError


def test_nested_matmuls_do_not_crash_the_compiler(tpu_compiler, monkeypatch):
    """Rematerialised attention with random bits: three matmuls deep."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    config = profiling_plan.resolve_for_tpu(load_config("configs/bert.py:tiny", []))
    changes = {"data.phases": (), "data.batch_size": 64, "model.remat": "full"}
    config = replace_fields(config, changes)
    (phase,) = build.phases(config)
    with CompilerProcess("v5e:2x2", 1) as compile_step:
        step = compile_step(config, phase)
    assert step.settings == {"data": 4, "remat": "full", "microbatches": 1}
    assert step.fits
