"""What a roll call refuses before it waits; that it waits is tried with `bertjax launch`."""

import pytest

from bertjax.errors import UserError
from bertjax.runtime.rendezvous import rendezvous


@pytest.mark.parametrize("seconds", ["soon", "0", "-3", "inf", "nan", ""])
def test_a_time_that_is_none(monkeypatch, seconds):
    monkeypatch.setenv("BERTJAX_SECONDS_TO_JOIN", seconds)
    with pytest.raises(
        UserError, match=r"BERTJAX_SECONDS_TO_JOIN=.*: expected a number of seconds"
    ):
        rendezvous("localhost:1", 2, 0)


@pytest.mark.parametrize(
    ("address", "count", "number", "said"),
    [
        ("localhost", 2, 0, "coordinator 'localhost': expected HOST:PORT"),
        ("localhost:http", 2, 0, "coordinator 'localhost:http': expected HOST:PORT"),
        ("localhost:1", 2, 2, "process 2 of 2: expected a number from 0 to 1"),
    ],
)
def test_a_place_that_is_none(address, count, number, said):
    with pytest.raises(UserError, match=said):
        rendezvous(address, count, number)
