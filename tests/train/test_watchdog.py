"""A run in which no step ends tells what its threads are doing."""

import time
import types

import pytest

from bertjax.train.hooks import Watchdog

TENTH = 0.1 / 60


def waits_in_a_function_of_this_name(dog, capfd, wanted):
    """Waits until it was told so often, and returns all that was told."""
    printed, end = "", time.monotonic() + 30
    while printed.count("no step has ended") < wanted and time.monotonic() < end:
        time.sleep(0.02)
        printed += capfd.readouterr().err
    return printed


@pytest.fixture
def dog():
    dog = Watchdog(TENTH)
    dog.on_train_begin(types.SimpleNamespace(first_step=1233), None, {})
    yield dog
    dog.close()


def test_all_stacks_are_told_again_and_again(dog, capfd):
    dog.on_metrics(1234, {})
    dog._since -= 100 * 60  # as if that had been long ago
    printed = waits_in_a_function_of_this_name(dog, capfd, wanted=2)
    assert "process 0: no step has ended for 100 minutes, the last was step 1,234;" in printed
    assert "; stacks of all threads:\n" in printed
    assert "in waits_in_a_function_of_this_name" in printed
    assert printed.count("no step has ended") >= 2


def test_steps_that_end_keep_it_quiet(capfd):
    dog = Watchdog(1.0)
    dog.on_train_begin(types.SimpleNamespace(first_step=0), None, {})
    for step in range(1, 30):
        dog.on_metrics(step, {})
    dog.close()
    assert capfd.readouterr().err == ""


def test_zero_minutes_are_never(capfd):
    dog = Watchdog(0)
    dog.on_train_begin(types.SimpleNamespace(first_step=0), None, {})
    time.sleep(0.05)
    dog.close()
    assert capfd.readouterr().err == ""
