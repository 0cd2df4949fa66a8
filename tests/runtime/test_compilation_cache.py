"""The cache folder, and the reuse of compiled programs by later processes."""

import os
import pathlib
import subprocess
import sys

import filelock
import pytest

from bertjax.io import files as io_files
from bertjax.runtime import compilation_cache

NAMES = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE", io_files.CACHE_VARIABLE)


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """An empty home directory, and no variable of the cache set."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def test_the_cache_folder_is_the_argument_or_the_variable_or_the_users(environment, tmp_path):
    assert io_files.cache_directory() == tmp_path / ".cache" / "bertjax"
    environment.setenv("BERTJAX_CACHE", str(tmp_path / "shared"))
    assert io_files.cache_directory() == tmp_path / "shared"
    assert io_files.cache_directory("own") == pathlib.Path("own")


def test_programs_are_in_the_cache_folder_unless_jax_variables_are_set(environment, tmp_path):
    compilation_cache.enable()
    folder = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    assert folder.is_dir()
    assert folder.parent == tmp_path / ".cache" / "bertjax"
    assert int(os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"]) == 4 * 2**30
    environment.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    compilation_cache.enable()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"


def test_a_folder_that_cannot_be_created_disables_the_cache(environment, tmp_path):
    (tmp_path / ".cache").write_text("a file")
    compilation_cache.enable()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_an_incomplete_program_is_removed(environment):
    compilation_cache.enable()
    folder = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    for name in ("whole-cache", "whole-atime", "half-cache"):
        (folder / name).write_bytes(b"x")

    def start():
        environment.delenv("JAX_COMPILATION_CACHE_DIR")
        compilation_cache.enable()
        return {path.name for path in folder.glob("*-*")}

    with filelock.FileLock(folder / ".lockfile"):
        assert start() == {"whole-cache", "whole-atime", "half-cache"}  # it is being written
    assert start() == {"whole-cache", "whole-atime"}


def test_without_a_size_limit_nothing_is_removed(environment):
    environment.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")
    compilation_cache.enable()
    program = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"]) / "whole-cache"
    program.write_bytes(b"x")
    environment.delenv("JAX_COMPILATION_CACHE_DIR")
    compilation_cache.enable()
    assert program.exists()


def test_an_incomplete_program_that_cannot_be_removed_is_ignored(environment):
    compilation_cache.enable()
    folder = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    environment.delenv("JAX_COMPILATION_CACHE_DIR")
    (folder / "folder-cache").mkdir()
    compilation_cache.enable()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path, root, command_environment):
    """JAX caches programs that take longer to compile than a threshold, which is 0 here."""
    env = {name: value for name, value in command_environment.items() if name not in NAMES}
    env |= {"BERTJAX_CACHE": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    words = ["bench", "--config", "configs/bert.py:tiny", "--config.data.phases=()"]
    words += ["--config.data.max_seq_length=8", "--config.data.batch_size=8", "--steps", "1"]
    words += ["--config.model.vocab_size=97", "--repeats", "1"]

    def programs():
        command = [sys.executable, "-m", "bertjax", *words]
        done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {path.name for path in tmp_path.glob("compiled-*/*-cache")}

    first = programs()
    assert any(name.startswith("jit_train_step") for name in first)
    assert programs() == first
    # As where a process was killed while it wrote.
    (step,) = tmp_path.glob("compiled-*/jit_train_step-*-cache")
    whole = step.read_bytes()
    step.write_bytes(whole[:1000])
    step.with_name(step.name.removesuffix("cache") + "atime").unlink()
    assert programs() == first
    assert len(step.read_bytes()) > 1000
