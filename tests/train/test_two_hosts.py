"""Two real processes, each with half of the devices."""

import json
import pathlib
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint.restore import load_numpy

SCRIPT = pathlib.Path(__file__).with_name("two_hosts.py")


@pytest.fixture
def start_hosts(command_environment, xla_flags):
    """Start both hosts; they are stopped at the end of the test."""
    hosts = []

    def start(workdir, steps, eval_batches=0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = command_environment | {
            "XLA_FLAGS": xla_flags(2),
            "GLOO_LOG_LEVEL": "ERROR",
        }
        words = [str(word) for word in (workdir, steps, eval_batches)]
        pair = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(port), str(rank), *words],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        hosts.extend(pair)
        return pair

    yield start
    for host in hosts:
        if host.poll() is None:
            host.kill()
        host.communicate()


def output(host):
    """Read the next line of output of a host, skipping messages of gloo."""
    for line in host.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise AssertionError(host.stderr.read())


def ended(host):
    result, err = output(host), host.stderr.read()
    return host.wait(timeout=60), result, err


@pytest.mark.slow
def test_a_signal_to_one_host_stops_both_after_the_same_step_and_they_resume(tmp_path, start_hosts):
    hosts = start_hosts(tmp_path, 1000)
    for host in hosts:
        assert output(host) == {"first": 0}
    while not checkpoint_folder.steps(tmp_path / "checkpoints"):
        assert all(host.poll() is None for host in hosts)
    hosts[1].send_signal(signal.SIGTERM)
    (code0, first, err0), (code1, second, err1) = map(ended, hosts)
    assert (code0, code1) == (143, 143), err0 + err1
    assert first == second
    stopped_at = first["step"]
    assert 5 <= stopped_at < 1000
    assert checkpoint_folder.steps(tmp_path / "checkpoints")[-1] == stopped_at

    hosts = start_hosts(tmp_path, stopped_at + 3)
    for host in hosts:
        assert output(host) == {"first": stopped_at}
        code, result, err = ended(host)
        assert (code, result["step"]) == (0, stopped_at + 3), err

    expected = np.arange(8, dtype=np.float32)
    for step in range(stopped_at + 3):
        expected = expected * np.float32(1.5) + np.float32(step)
    last = tmp_path / "checkpoints" / str(stopped_at + 3)
    assert checkpoint_folder.find_defect(last) is None
    np.testing.assert_allclose(load_numpy(last, "params")["w"], expected, rtol=1e-5)


@pytest.mark.slow
def test_a_signal_to_one_host_stops_an_evaluation_of_both_after_the_same_batch(
    tmp_path, start_hosts
):
    hosts = start_hosts(tmp_path, 4, eval_batches=1000)
    for host in hosts:
        assert [output(host), output(host)] == [{"first": 0}, {"evaluating": 3}]
    hosts[1].send_signal(signal.SIGTERM)
    (code0, first, err0), (code1, second, err1) = map(ended, hosts)
    assert (code0, code1) == (143, 143), err0 + err1
    assert first == second
    assert (first["step"], first["stopped"]) == (3, True)
    assert first["evaluated"] < 1000
    assert checkpoint_folder.steps(tmp_path / "checkpoints") == [3]

    hosts = start_hosts(tmp_path, 4, eval_batches=5)
    for host in hosts:
        lines = [output(host) for _ in range(3)]
        assert lines == [{"first": 3}, {"evaluating": 3}, {"evaluating": 4}]
        code, result, err = ended(host)
        assert code == 0, err
        assert result == {"step": 4, "stopped": False, "evaluated": 5 + 5}
