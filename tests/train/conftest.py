"""Fixtures of trainer tests: the toy run as a module and as a process, and small trainers."""

import importlib.util
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from bertjax.train import sharding
from bertjax.train.trainer import make_trainer

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
    """Run the toy in this process: `run_here(workdir, "--steps", "5")` -> (state, interrupt)."""

    def run(workdir, *arguments):
        return toy.run(workdir, toy.parse([str(workdir), *map(str, arguments)]))

    return run


@pytest.fixture(scope="session")
def toy_environment(command_environment):
    """The environment of the toy as a separate process.

    Without the compilation cache: warnings are errors, and JAX warns of incomplete entries of
    killed processes.
    """
    return command_environment | {"JAX_ENABLE_COMPILATION_CACHE": "false"}


@pytest.fixture(scope="session")
def start_toy(toy_environment):
    """Start the toy in a separate process; returns the Popen."""

    def start(workdir, *arguments, **options):
        return subprocess.Popen(
            [sys.executable, "-W", "error", str(TOY), str(workdir), *map(str, arguments)],
            env=toy_environment,
            text=True,
            **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
        )

    return start


@pytest.fixture(scope="session")
def small_trainer():
    """Create a trainer with a learning rate of 0.3: `make(pretrainer, optimizer, batch, ...)`."""

    def make(pretrainer, optimizer, batch, *, microbatches=1, devices=1, **axes):
        sizes = {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1} | axes
        return make_trainer(
            pretrainer,
            optimizer,
            lambda step: jnp.asarray(0.3),
            batch,
            mesh=sharding.make_mesh(sizes, jax.devices()[:devices]),
            rules=sharding.RULES,
            seed=0,
            microbatches=microbatches,
            batch_size=len(batch["example_id"]),
        )

    return make


@pytest.fixture(scope="session")
def take_steps():
    """Train on `batch_of(step)` for steps first to last; returns the state and all losses."""

    def take(trainer, batch_of, state, first, last):
        losses = []
        for step in range(first, last):
            batch = sharding.to_global(batch_of(step), trainer.mesh)
            state, metrics = trainer.train_step(state, batch)
            losses.append(float(metrics["loss"]))
        return state, losses

    return take
