"""The watchdog: stacks of all threads if no step ends."""

import time
import types

import pytest

from bertjax.train.hooks import Watchdog

TENTH = 0.1 / 60


def waits_in_a_function_of_this_name(dog, capfd, expected):
    """Wait for a number of messages, and return all messages."""
    printed, end = "", time.monotonic() + 30
    while printed.count("no step has ended") < expected and time.monotonic() < end:
        time.sleep(0.02)
        printed += capfd.readouterr().err
    return printed


@pytest.fixture
def dog():
    dog = Watchdog(TENTH)
    dog.on_train_begin(types.SimpleNamespace(first_step=1233), None, {})
    yield dog
    dog.close()


def test_all_stacks_are_printed_repeatedly(dog, capfd):
    dog.on_metrics(1234, {})
    dog._since -= 100 * 60  # as if that had been long ago
    printed = waits_in_a_function_of_this_name(dog, capfd, expected=2)
    assert "process 0: no step has ended for 100 minutes, the last was step 1,234;" in printed
    assert "; stacks of all threads:\n" in printed
    assert "in waits_in_a_function_of_this_name" in printed
    assert printed.count("no step has ended") >= 2


def test_steps_prevent_messages(capfd):
    dog = Watchdog(1.0)
    dog.on_train_begin(types.SimpleNamespace(first_step=0), None, {})
    for step in range(1, 30):
        dog.on_metrics(step, {})
    dog.close()
    assert capfd.readouterr().err == ""


def test_zero_minutes_disable_it(capfd):
    dog = Watchdog(0)
    dog.on_train_begin(types.SimpleNamespace(first_step=0), None, {})
    time.sleep(0.05)
    dog.close()
    assert capfd.readouterr().err == ""
