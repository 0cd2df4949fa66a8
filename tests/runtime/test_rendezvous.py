"""Arguments that a rendezvous refuses, and missing processes."""

import socket

import pytest

from bertjax.errors import TemporaryError, UserError
from bertjax.runtime.rendezvous import rendezvous


@pytest.mark.parametrize("seconds", ["soon", "0", "-3", "inf", "nan", ""])
def test_an_invalid_timeout_is_refused(monkeypatch, seconds):
    monkeypatch.setenv("BERTJAX_INITIALIZATION_TIMEOUT", seconds)
    with pytest.raises(
        UserError, match=r"BERTJAX_INITIALIZATION_TIMEOUT: got .*, expected a positive number"
    ):
        rendezvous("localhost:1", 2, 0)


@pytest.mark.parametrize(
    ("address", "count", "number", "message"),
    [
        ("localhost", 2, 0, "BERTJAX_COORDINATOR: got .localhost., expected HOST:PORT"),
        ("localhost:http", 2, 0, "BERTJAX_COORDINATOR: got .localhost:http., expected HOST:PORT"),
        ("localhost:1", 2, 2, "BERTJAX_PROCESS: got 2, expected an integer from 0 to 1"),
    ],
)
def test_an_invalid_address_or_index_is_refused(address, count, number, message):
    with pytest.raises(UserError, match=message):
        rendezvous(address, count, number)


@pytest.mark.parametrize(
    ("number", "message"),
    [(0, "process 1 of 2 did not connect within 0.2 s"), (1, "process 0 at .* did not reply")],
)
def test_a_missing_process_is_a_temporary_error(number, message, monkeypatch):
    """Its machine may be back at the next start."""
    monkeypatch.setenv("BERTJAX_INITIALIZATION_TIMEOUT", "0.2")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(TemporaryError, match=message):
        rendezvous(f"127.0.0.1:{port}", 2, number)
