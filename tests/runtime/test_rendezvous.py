"""Arguments that a rendezvous refuses; waiting is tested with `bertjax launch local`."""

import pytest

from bertjax.errors import UserError
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
