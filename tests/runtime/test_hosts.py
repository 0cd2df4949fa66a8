"""Places where processes of a job meet, tried with two real ones."""

import socket
import subprocess
import sys

import pytest

from bertjax.errors import UserError
from bertjax.runtime import distributed

MEET = """
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
os._exit(0)  # the late one is not waited for
"""


@pytest.fixture
def start(command_environment):
    """Starts process `number` of two, which is late if its standard input stays open."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = []

    def process(number: int, when: str) -> subprocess.Popen:
        own = {"COORDINATOR": address, "PROCESSES": "2", "PROCESS": str(number)}
        own |= {"SECONDS_TO_MEET": "2"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", MEET, when],
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


@pytest.mark.parametrize("late", [0, 1])
def test_who_comes_late_is_named(start, late):
    processes = [start(number, "late" if number == late else "in time") for number in (0, 1)]
    said = [line for line in processes[1 - late].stdout if "[Gloo]" not in line]
    assert said == [
        "met\n",
        f"process {late} of 2 did not come to 'second place' within 2 s of the first one\n",
    ]


def test_one_process_waits_for_nobody(monkeypatch):
    monkeypatch.setenv("BERTJAX_SECONDS_TO_MEET", "0.001")
    distributed.barrier("anywhere")


def test_a_time_that_is_none(monkeypatch):
    monkeypatch.setenv("BERTJAX_SECONDS_TO_MEET", "soon")
    monkeypatch.setattr(distributed.jax, "process_count", lambda: 2)
    with pytest.raises(
        UserError, match="BERTJAX_SECONDS_TO_MEET=soon: expected a number of seconds"
    ):
        distributed.barrier("anywhere")
