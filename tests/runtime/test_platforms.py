"""Which platforms JAX is told to look for, before it is imported."""

import importlib.util
import os

import pytest

from bertjax.runtime import host


@pytest.fixture
def machine(monkeypatch):
    """A machine with the runtime for TPUs and no accelerator; nothing is set."""
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(host, "list_gpus", list)
    monkeypatch.setattr(host, "list_tpu_chips", list)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return monkeypatch


def test_no_tpu_is_looked_for_where_there_is_none(machine):
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
def test_where_there_is_one_or_no_runtime_for_any_jax_looks_itself(machine, module, name, found):
    machine.setattr(module, name, found)
    host.skip_absent_tpus()
    assert "JAX_PLATFORMS" not in os.environ


def test_what_is_said_already_stays(machine):
    machine.setenv("JAX_PLATFORMS", "tpu,cpu")
    host.skip_absent_tpus()
    assert os.environ["JAX_PLATFORMS"] == "tpu,cpu"


def test_the_compiler_for_tpus_gets_stack(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--one=1")
    host.enlarge_tpu_compiler_stack()
    host.enlarge_tpu_compiler_stack()
    said = os.environ["LIBTPU_INIT_ARGS"]
    assert said == "--one=1 --fibers_default_thread_stack_size=4194304"


def test_a_stack_that_is_set_already_stays(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--fibers_default_thread_stack_size=1048576")
    host.enlarge_tpu_compiler_stack()
    assert os.environ["LIBTPU_INIT_ARGS"] == "--fibers_default_thread_stack_size=1048576"
