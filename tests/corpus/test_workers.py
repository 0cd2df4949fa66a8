"""Worker processes: order of results, errors, termination."""

import functools
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from bertjax import catalog
from bertjax.corpus.workers import WorkerPool
from bertjax.errors import UserError


def tagged(blocks):
    return list(enumerate(blocks))


def test_results_are_in_order_though_the_first_takes_longest():
    numbers = [30_000, 3, 5, 2_000, 1, 4, 7, 20_000, 2, 6]
    with WorkerPool(functools.partial, (math.factorial,), 3) as pool:
        found = list(pool.imap(tagged(numbers)))
    assert found == [(tag, math.factorial(number)) for tag, number in enumerate(numbers)]


def test_blocks_are_read_only_as_needed():
    requested = []

    def blocks():
        for number in range(1000):
            requested.append(number)
            yield number, number

    with WorkerPool(functools.partial, (math.factorial,), 2) as pool:
        results = pool.imap(blocks())
        next(results)
        assert len(requested) <= 7


def test_no_more_processes_start_than_there_are_blocks():
    with WorkerPool(functools.partial, (math.sqrt,), 50) as pool:
        assert list(pool.imap(tagged([4.0, 9.0]))) == [(0, 2.0), (1, 3.0)]
        assert len(pool._children) <= 2


def test_a_user_error_is_raised_as_one():
    with (
        WorkerPool(functools.partial, (catalog.load, "models"), 1) as pool,
        pytest.raises(UserError, match="no 'nonsense' in bertjax/models/"),
    ):
        list(pool.imap(tagged(["nonsense"])))


def test_other_errors_contain_the_traceback():
    with (
        WorkerPool(functools.partial, (math.sqrt,), 2) as pool,
        pytest.raises(RuntimeError, match=r"(?s)in a worker process:.*Traceback.*ValueError"),
    ):
        list(pool.imap(tagged([4.0, -1.0, 9.0])))


def test_an_error_while_making_the_function_is_raised():
    with (
        WorkerPool(catalog.load, ("models", "nonsense"), 1) as pool,
        pytest.raises(UserError, match="no 'nonsense'"),
    ):
        list(pool.imap(tagged([1])))


@pytest.mark.parametrize(
    ("function", "argument", "words"),
    [
        (signal.raise_signal, signal.SIGKILL, "killed by SIGKILL .*fewer --workers"),
        (signal.raise_signal, signal.SIGTERM, "killed by SIGTERM"),
        (os._exit, 3, "exited with status 3"),
    ],
)
def test_a_dead_worker_is_an_error_and_no_hang(function, argument, words):
    with (
        WorkerPool(functools.partial, (function,), 2) as pool,
        pytest.raises(UserError, match=rf"worker process \d+ (was )?{words}"),
    ):
        list(pool.imap(tagged([argument] * 4)))


def test_leaving_early_ends_the_workers():
    with WorkerPool(functools.partial, (time.sleep,), 2) as pool:
        results = pool.imap(tagged([0.1, 600, 600, 600]))
        next(results)
        children = [child._process.pid for child in pool._children]
    assert children
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


PARENT = """
import functools, time
from bertjax.corpus.workers import WorkerPool
with WorkerPool(functools.partial, (time.sleep,), 2) as pool:
    list(pool.imap([(number, 0.2) for number in range(6)]))
    print(*[child._process.pid for child in pool._children], flush=True)
    time.sleep(600)
"""


def test_workers_end_when_their_parent_is_killed(root):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    children = [int(word) for word in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(300):
        if not any(map(_is_running, children)):
            return
        time.sleep(0.1)
    raise AssertionError("workers outlived their parent")


def _is_running(process):
    try:
        with open(f"/proc/{process}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
