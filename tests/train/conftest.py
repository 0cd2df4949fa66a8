"""The toy run, as a module and as a process."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

TOY = pathlib.Path(__file__).with_name("toy_run.py")


@pytest.fixture(scope="session")
def toy():
    """The module tests/train/toy_run.py."""
    specification = importlib.util.spec_from_file_location("toy_run", TOY)
    module = importlib.util.module_from_spec(specification)
    sys.modules["toy_run"] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def run_here(toy):
    """Runs the toy in this process: `run_here(workdir, "--steps", "5")` -> (state, interrupt)."""

    def run(workdir, *arguments):
        return toy.run(workdir, toy.parse([str(workdir), *map(str, arguments)]))

    return run


@pytest.fixture(scope="session")
def start_toy(command_environment):
    """Starts the toy as a process of its own; returns the Popen."""

    def start(workdir, *arguments, **options):
        return subprocess.Popen(
            [sys.executable, "-W", "error", str(TOY), str(workdir), *map(str, arguments)],
            env=command_environment | {"XLA_FLAGS": ""},
            text=True,
            **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
        )

    return start
