"""What all tests share. The environment is set before anything can import jax."""

import os
import pathlib
import subprocess
import sys

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.pop("BERTJAX_PYTHON", None)

from jaxtyping import install_import_hook

install_import_hook(
    [f"bertjax.{part}" for part in ("layers", "models", "objectives", "tasks", "interfaces")],
    "beartype.beartype",
)

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The checkout: where pyproject.toml lies."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Real data beside the checkout; tests that need it skip where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real data is absent: no folder {folder}")
    return folder


@pytest.fixture(scope="session")
def compilation_cache(tmp_path_factory) -> pathlib.Path:
    """A folder where the commands that this session runs keep, and find, what XLA compiled."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "compilation_cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def command_environment(compilation_cache: pathlib.Path) -> dict[str, str]:
    """The environment of a command: this checkout, CPU only, compiled programs kept."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {
        "PYTHONPATH": path,
        "JAX_COMPILATION_CACHE_DIR": str(compilation_cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "COLUMNS": "100",
    }


@pytest.fixture(scope="session")
def run_bertjax(command_environment):
    """Types `bertjax ARGS...` in a process of its own and returns the CompletedProcess.

    `devices` is how many CPU devices it sees (1 unless told), `env` adds to its environment,
    anything else goes to `subprocess.run` (`cwd`, `input`, `timeout`, ...).
    """

    def run(*args, devices: int = 1, env: dict[str, str] | None = None, **options):
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        options = {"capture_output": True, "text": True, "timeout": 600, "cwd": ROOT} | options
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [sys.executable, "-m", "bertjax", *map(str, args)],
            env=command_environment | flags | (env or {}),
            **options,
        )

    return run
