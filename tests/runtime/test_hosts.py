"""Barriers between two real processes of a job."""

import socket
import subprocess
import sys

import pytest

from bertjax.errors import UserError
from bertjax.runtime import distributed

PROGRAM = """
import os
import sys
from bertjax.errors import UserError
from bertjax.runtime import distributed as hosts

hosts.connect(False)
hosts.barrier("first place")
print("met", flush=True)
if sys.argv[1] == "late":
    sys.stdin.read()
try:
    hosts.barrier("second place")
except UserError as error:
    print(error, flush=True)
os._exit(0)  # without waiting for the late process
"""


@pytest.fixture
def start(command_environment):
    """Start process `number` of two, which is late if its standard input stays open."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = []

    def process(number: int, when: str) -> subprocess.Popen:
        own = {"COORDINATOR": address, "PROCESSES": "2", "PROCESS": str(number)}
        own |= {"BARRIER_TIMEOUT": "2"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, when],
                env=command_environment | {f"BERTJAX_{name}": own[name] for name in own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[-1]

    yield process
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_missing_process_is_named(start, late):
    processes = [start(number, "late" if number == late else "in time") for number in (0, 1)]
    output = [line for line in processes[1 - late].stdout if "[Gloo]" not in line]
    assert output == [
        "met\n",
        f"process {late} of 2 did not reach barrier 'second place' within 2 s of the first one; "
        "look for its error, or raise BERTJAX_BARRIER_TIMEOUT\n",
    ]


def test_a_single_process_does_not_wait(monkeypatch):
    monkeypatch.setenv("BERTJAX_BARRIER_TIMEOUT", "0.001")
    distributed.barrier("anywhere")


def test_an_invalid_timeout_is_refused(monkeypatch):
    monkeypatch.setenv("BERTJAX_BARRIER_TIMEOUT", "soon")
    monkeypatch.setattr(distributed.jax, "process_count", lambda: 2)
    with pytest.raises(
        UserError, match="BERTJAX_BARRIER_TIMEOUT: got 'soon', expected a positive number"
    ):
        distributed.barrier("anywhere")
