"""Environment variables for JAX and libtpu that are set before jax is imported."""

import importlib.util
import os

import pytest

from bertjax.runtime import host


@pytest.fixture
def machine(monkeypatch):
    """A machine with libtpu and without accelerators; no variable is set."""
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(host, "list_gpus", list)
    monkeypatch.setattr(host, "list_tpu_chips", list)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return monkeypatch


def test_jax_uses_the_cpu_where_there_is_no_tpu(machine):
    host.skip_absent_tpus()
    assert os.environ["JAX_PLATFORMS"] == "cpu"


@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        (host, "list_tpu_chips", lambda: ["0"]),
        (host, "list_gpus", lambda: ["0"]),
        (importlib.util, "find_spec", lambda name: None),
    ],
)
def test_the_platform_is_not_set_with_accelerators_or_without_libtpu(machine, module, name, found):
    machine.setattr(module, name, found)
    host.skip_absent_tpus()
    assert "JAX_PLATFORMS" not in os.environ


def test_a_platform_that_is_set_is_kept(machine):
    machine.setenv("JAX_PLATFORMS", "tpu,cpu")
    host.skip_absent_tpus()
    assert os.environ["JAX_PLATFORMS"] == "tpu,cpu"


def test_the_tpu_compiler_gets_larger_stacks(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--one=1")
    host.enlarge_tpu_compiler_stack()
    host.enlarge_tpu_compiler_stack()
    output = os.environ["LIBTPU_INIT_ARGS"]
    assert output == "--one=1 --fibers_default_thread_stack_size=4194304"


def test_a_stack_size_that_is_set_is_kept(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--fibers_default_thread_stack_size=1048576")
    host.enlarge_tpu_compiler_stack()
    assert os.environ["LIBTPU_INIT_ARGS"] == "--fibers_default_thread_stack_size=1048576"
