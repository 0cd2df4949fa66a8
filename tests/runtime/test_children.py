"""Signals that reach the parent of child processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from bertjax.runtime.children import Children, describe_exit

IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM", flush=True))
print("ready", flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture
def child():
    with Children() as children:
        process = children.start([sys.executable, "-c", IGNORES_SIGTERM], stdout=subprocess.PIPE)
        with process.stdout:
            assert process.stdout.readline() == b"ready\n"
            yield children, process
            children.kill()
            process.wait()


def poll_until_ended(children, seconds=30):
    end = time.monotonic() + seconds
    while children.running and time.monotonic() < end:
        children.poll()


def test_ctrl_c_is_forwarded_as_sigterm_and_a_second_one_kills(child):
    children, process = child
    os.kill(os.getpid(), signal.SIGINT)
    children.poll()
    assert process.stdout.readline() == b"SIGTERM\n"
    assert children.signal == signal.SIGINT
    os.kill(os.getpid(), signal.SIGTERM)
    assert children.poll() == [], "schedulers and shells may each forward the same SIGTERM"
    os.kill(os.getpid(), signal.SIGINT)
    poll_until_ended(children)
    assert process.returncode == -signal.SIGKILL
    assert children.signal == signal.SIGINT


def test_handlers_are_restored_and_children_are_terminated_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    started = []

    def fail():
        with Children() as children:
            started.append(children.start([sys.executable, "-c", "import time; time.sleep(60)"]))
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert started[0].returncode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_how_a_process_ended():
    assert describe_exit(2) == "exit status 2"
    assert describe_exit(-signal.SIGKILL) == "SIGKILL"
