"""Processes of the fork server, compared with those of `python -m`."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, json, os, signal, sys, threading, time

streams = (sys.stdin, sys.stdout, sys.stderr)
fields = ("encoding", "errors", "line_buffering", "write_through", "newlines")
print(json.dumps({
    "arguments": sys.argv,
    "path": sys.path,
    "folder": os.getcwd(),
    "module": sys.modules["__main__"].__spec__.name,
    "streams": [[str(getattr(stream, name)) for name in fields] for stream in streams],
    "input": sys.stdin.read(),
    "files": sorted(os.listdir("/proc/self/fd")),
    "signals": [str(signal.getsignal(number)) for number in range(1, signal.SIGRTMIN)],
    "threads": len(os.listdir("/proc/self/task")),
    "session": [os.getsid(0), os.getpgrp()],
    "XLA_FLAGS": os.environ["XLA_FLAGS"],
}))
atexit.register(print, "at exit", file=sys.stderr)
threading.Thread(target=lambda: time.sleep(0.1) or print("a thread")).start()
exec(sys.argv[1])
"""


@pytest.fixture(scope="module")
def fork_server(command_environment, load_script):
    """A server as young as the processes it is compared with, which inherit ignored signals.

    The TPU compiler ignores SIGHUP and SIGPROF in the process that loads it.
    """
    server = load_script("tests/fork_server.py").ForkServer(command_environment)
    yield server
    server.close()


@pytest.fixture
def folder(tmp_path):
    """A folder with a package that replaces bertjax for processes that are started there."""
    (tmp_path / "bertjax").mkdir()
    (tmp_path / "bertjax" / "__init__.py").touch()
    (tmp_path / "bertjax" / "__main__.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('an error')", 1),
        ("raise KeyboardInterrupt", -2),
        ("sys.stdout.flush(); os.kill(os.getpid(), signal.SIGINT)", -2),
        ("sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
)
def test_a_forked_process_equals_a_new_one(fork_server, folder, command_environment, end, status):
    text, flags = "a line\r\nand another", "--xla_cpu_enable_fast_math=false"
    new = subprocess.run(
        [sys.executable, "-m", "bertjax", end],
        **{"input": text, "text": True, "capture_output": True, "cwd": folder},
        env=command_environment | {"XLA_FLAGS": flags},
    )
    forked = fork_server.run([end], input=text, timeout=60, cwd=folder, xla_flags=flags)
    assert forked.stdout == new.stdout
    assert forked.returncode == new.returncode
    assert new.returncode == status
    assert forked.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_a_process_that_takes_too_long_is_killed_and_the_next_one_runs(fork_server, folder):
    with pytest.raises(TimeoutError):
        fork_server.run(["time.sleep(600)"], input="", timeout=0.3, cwd=folder, xla_flags="")
    assert fork_server.run(["pass"], input="", timeout=60, cwd=folder, xla_flags="").returncode == 0
