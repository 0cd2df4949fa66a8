"""Signals are handled immediately, also in compiled code, and no interrupt is lost."""

import gc
import hashlib
import importlib
import os
import signal
import threading
import time

import pytest

from bertjax.runtime.interrupt import Interrupt
from bertjax.runtime.signals import ControlC, SignalWatch


def compute() -> None:
    """Run compiled code for a second without the interpreter's lock, as XLA does."""
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 3_000_000)


@pytest.fixture
def handled():
    """A list of events in order; the handler of SIGUSR1 appends to it."""
    events = []
    before = signal.signal(signal.SIGUSR1, lambda *_: events.append("handled"))
    yield events
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_is_handled_before_compiled_code_returns(handled):
    noticed = threading.Event()

    def arrived(numbers: bytes) -> None:
        handled.append(signal.Signals(numbers[0]).name)
        noticed.set()

    def send() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert noticed.wait(60)

    with SignalWatch(arrived):
        sender = threading.Timer(0.1, send)
        sender.start()
        compute()
        sender.join()
    assert handled == ["SIGUSR1", "handled"]


def test_watches_nest_and_restore_the_previous_state():
    outer, inner = [], []
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    threads = threading.active_count()
    with SignalWatch(outer.append):
        with SignalWatch(inner.append):
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    assert outer == inner == [bytes([signal.SIGUSR1])]
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1


def test_control_c_that_a_callback_ignores_is_raised_again():
    def interrupted_once(*_) -> None:
        gc.callbacks.remove(interrupted_once)
        signal.raise_signal(signal.SIGINT)

    def collect_and_wait() -> None:
        gc.callbacks.append(interrupted_once)
        gc.collect()
        for _ in range(1000):
            time.sleep(0.01)

    with ControlC("bertjax fake") as control_c, pytest.raises(KeyboardInterrupt):
        collect_and_wait()
    assert control_c.pressed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_control_c_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    """Modules written in C crash where their import is interrupted."""
    program = "import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n"
    (tmp_path / "interrupted_module.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def import_and_wait() -> None:
        imported.append(importlib.import_module("interrupted_module").whole)
        for _ in range(1000):
            time.sleep(0.01)

    with ControlC("bertjax fake"), pytest.raises(KeyboardInterrupt):
        import_and_wait()
    assert imported == [True]


def test_handlers_of_a_command_itself_are_left_alone():
    seen = []
    with ControlC("bertjax fake") as control_c:
        before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    assert not control_c.pressed


def test_an_interrupted_run_prints_the_pending_operation(capfd):
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
    assert interrupt.signal == signal.SIGTERM
    line = "SIGTERM: finishing this step{} and saving; press Ctrl-C again to stop now\n"
    assert capfd.readouterr().err == line.format(" once XLA has compiled it")
    with Interrupt() as interrupt:
        assert not interrupt.should_stop()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.should_stop()
    assert capfd.readouterr().err == line.format("")


def test_signal_handlers_are_restored_after_a_run():
    def own(*_) -> None:
        pass

    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, own) for number in numbers]
    try:
        with Interrupt():
            assert own not in map(signal.getsignal, numbers)
        after_a_run = [signal.getsignal(number) for number in numbers]
        with Interrupt():
            signal.raise_signal(signal.SIGTERM)
        after_a_signal = [signal.getsignal(number) for number in numbers]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert after_a_run == after_a_signal == [own, own]
