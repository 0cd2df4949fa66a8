"""tools/run and tools/test: creating and updating the virtual environment of a checkout.

The real scripts run, with real virtual environments; only the project that they install is small,
and carries its own build backend, so that no package index is needed.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

# Writes an editable wheel by hand: a .pth line and the `bertjax` program.
BACKEND = """
import os, time, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    here = os.path.dirname(os.path.abspath(__file__))
    if os.path.exists(os.path.join(here, "fail")):
        raise SystemExit("no index within reach")
    if os.path.exists(os.path.join(here, "wait")):
        open(os.path.join(here, "waiting"), "w").close()
        time.sleep(60)
    info, name = "bertjax-0.dist-info/", "bertjax-0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\\nName: bertjax\\nVersion: 0\\nProvides-Extra: test\\n"
    files = {
        "bertjax.pth": here,
        info + "METADATA": about,
        info + "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        info + "entry_points.txt": "[console_scripts]\\nbertjax = bertjax:main\\n",
    }
    files[info + "RECORD"] = "".join(f"{name},,\\n" for name in [*files, info + "RECORD"])
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
"""

PACKAGE = """
import os, sys

def main():
    print(sys.argv[1:], os.getcwd(), sys.prefix, os.environ.get("GLIBC_TUNABLES"), sep="|")
"""


def make_checkout(folder: pathlib.Path, root: pathlib.Path) -> pathlib.Path:
    checkout = folder / "a check out"
    shutil.copytree(root / "tools", checkout / "tools")
    (checkout / "bertjax").mkdir()
    (checkout / "bertjax" / "__init__.py").write_text(PACKAGE)
    (checkout / "pytest.py").write_text("import os, sys; print(sys.argv[1:], os.getcwd(), sep='|')")
    (checkout / "backend.py").write_text(BACKEND)
    (checkout / "pyproject.toml").write_text(PYPROJECT)
    return checkout


def programs(folder: pathlib.Path) -> pathlib.Path:
    """Two folders for a PATH: shims that fail, then the real Python and a few programs."""
    shims, real = folder / "shims", folder / "real"
    shims.mkdir()
    real.mkdir()
    for minor in (11, 12, 13):
        (shims / f"python3.{minor}").write_text("#!/bin/sh\necho command not found >&2\nexit 127\n")
        (shims / f"python3.{minor}").chmod(0o755)
    for name in ["sh", "dirname", "readlink", "cksum", "cat", "uname", "ls", "grep"]:
        (real / name).symlink_to(shutil.which(name))
    base = pathlib.Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    (real / base.name).symlink_to(base)
    return shims, real


OWN = f"3.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def created(tmp_path_factory, root) -> tuple[pathlib.Path, str]:
    """A checkout with an environment created by `tools/run`, and the output of that call.

    The only Python is one that CI does not test.
    """
    folder = tmp_path_factory.mktemp("tools")
    checkout = make_checkout(folder, root)
    script = checkout / "tools" / "environment"
    text = script.read_text()
    lists = f'tested="3.9"\nuntested="{OWN}"\n'
    script.write_text(re.sub("^tested=.*\nuntested=.*\n", lists, text, flags=re.M))
    result = call(checkout, "run", path=":".join(map(str, programs(folder))))
    script.write_text(text)
    assert result.returncode == 0, result.stderr
    return checkout, result.stderr


@pytest.fixture
def checkout(created) -> pathlib.Path:
    return created[0]


def environment(path: str | None = None, **variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TMPDIR")}
    return kept | {"HOME": "/nonexistent"} | ({"PATH": path} if path else {}) | variables


def call(checkout, tool, *args, path=None, cwd="/", env=None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [checkout / "tools" / tool, *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(path, **(env or {})),
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


def test_the_second_use_installs_nothing_and_passes_all_arguments(checkout, tmp_path):
    before = (checkout / ".venv" / "bertjax.stamp").stat().st_mtime_ns
    link = tmp_path / "a link"
    link.symlink_to(checkout / "tools" / "run")
    arguments = ["pretrain", "--config", "a 'b' \"c\" $d", "", "*"]
    result = subprocess.run(
        [link, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment()
    )
    assert result.stderr == ""
    shown, folder, prefix, tunables = result.stdout.strip().split("|")
    assert shown == str(arguments)
    assert folder == str(tmp_path)
    assert prefix == str(checkout / ".venv")
    assert (checkout / ".venv" / "bertjax.stamp").stat().st_mtime_ns == before
    if sys.platform == "linux":
        assert tunables == "glibc.malloc.hugetlb=1"


def test_glibc_tunables_of_the_user_are_kept(checkout):
    result = call(checkout, "run", env={"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
    assert "|glibc.malloc.arena_max=2" in result.stdout


def test_an_active_environment_is_used(checkout, tmp_path, root):
    other = make_checkout(tmp_path, root)
    result = call(other, "run", "x", env={"VIRTUAL_ENV": str(checkout / ".venv")})
    assert result.returncode == 0, result.stderr
    assert f"|{checkout / '.venv'}|" in result.stdout
    assert not (other / ".venv").exists()
    # The first checkout must detect that the other one is installed in its environment.
    again = call(checkout, "run", "x")
    assert "installing" in again.stderr
    assert again.returncode == 0


def test_tests_run_in_the_checkout_with_their_packages(checkout, tmp_path):
    result = call(checkout, "test", "-k", "a b", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"['-k', 'a b']|{checkout}\n"
    assert (checkout / ".venv" / "bertjax.stamp").read_text().endswith(" test\n")
    assert call(checkout, "run", "x").stderr == ""


@pytest.mark.slow
def test_new_requirements_are_installed_and_a_failure_is_retried(checkout):
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    (checkout / "fail").touch()
    result = call(checkout, "run", "x")
    assert result.returncode == 2
    assert "the installation failed" in result.stderr
    assert "Traceback" not in result.stderr
    (checkout / "fail").unlink()
    result = call(checkout, "run", "x")
    assert (result.returncode, "creating" in result.stderr) == (0, False)
    assert call(checkout, "run", "x").stderr == ""


@pytest.mark.slow
def test_a_killed_installation_is_repeated_once_by_two_concurrent_starts(tmp_path, root):
    checkout = make_checkout(tmp_path, root)
    (checkout / "wait").touch()
    first = subprocess.Popen(
        [checkout / "tools" / "run"],
        env=environment(),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (checkout / "waiting").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert (checkout / ".venv" / "bin" / "python").exists()
    (checkout / "wait").unlink()

    both = [
        subprocess.Popen(
            [checkout / "tools" / "run", "x"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert all(out.startswith("['x']|") for out, _ in outputs)
    assert sum("creating it again" in errors for _, errors in outputs) == 1
    assert sum("waiting for it" in errors for _, errors in outputs) == 1


@pytest.mark.parametrize(
    ("installed", "covered"),
    [("run", ["run"]), ("test", ["run", "test"]), ("test-all", ["run", "test", "test-all"])],
)
def test_an_installation_covers_smaller_purposes(installed, covered, load_script, tmp_path):
    covers = load_script("tools/make_environment.py").covers
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bertjax").touch()
    (tmp_path / "bertjax.stamp").write_text(f"key {installed}\n")
    purposes = ("run", "test", "test-all")
    assert [purpose for purpose in purposes if covers(tmp_path, purpose, "key")] == covered
    assert not covers(tmp_path, "run", "another key")


def test_an_environment_of_the_user_is_never_removed(tmp_path, root):
    checkout = make_checkout(tmp_path, root)
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "notes").touch()
    result = call(checkout, "run", "x")
    assert result.returncode == 2
    assert "is not a working virtual environment: remove it" in result.stderr
    assert (checkout / ".venv" / "notes").exists()


def test_no_python_at_all(tmp_path, root):
    checkout = make_checkout(tmp_path, root)
    shims, real = programs(tmp_path)
    (real / f"python3.{sys.version_info.minor}").unlink()
    result = call(checkout, "run", "x", path=f"{shims}:{real}")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "3.11 or later is expected" in result.stderr
    assert not (checkout / ".venv").exists()


def test_ci_tests_the_preferred_python_versions(root):
    preferred = re.search('^tested="(.*?)"', (root / "tools/environment").read_text(), re.M)[1]
    in_ci = re.findall(r"tools/environment find (3\.\d+)", (root / ".ci/run").read_text())
    assert preferred.split() == sorted(in_ci, key=lambda name: int(name[2:]), reverse=True)


def test_a_python_that_ci_does_not_test_is_used_with_a_warning(created):
    _, printed = created
    warning = f"bertjax: warning: no Python 3.9 found: using {OWN}, which CI does not test\n"
    assert printed.startswith(f"{warning}bertjax: creating ")
    assert printed.count("bertjax: installing ") == 1


def test_a_python_selected_with_bertjax_python(checkout, tmp_path, root):
    fresh = make_checkout(tmp_path, root)
    result = call(fresh, "run", "x", env={"BERTJAX_PYTHON": "/nowhere/python3"})
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "BERTJAX_PYTHON=/nowhere/python3: no such program" in result.stderr
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    result = call(fresh, "run", "x", env={"BERTJAX_PYTHON": str(old)})
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "older than 3.11" in result.stderr
    result = call(checkout, "run", "x", env={"BERTJAX_PYTHON": sys.executable})
    assert result.returncode == 0, result.stderr


def test_an_active_environment_that_is_too_old(tmp_path, root):
    checkout = make_checkout(tmp_path, root)
    (tmp_path / "old" / "bin").mkdir(parents=True)
    (tmp_path / "old" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "old" / "bin" / "python").chmod(0o755)
    result = call(checkout, "run", "x", env={"VIRTUAL_ENV": str(tmp_path / "old")})
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "has no Python 3.11 or later: deactivate it" in result.stderr
