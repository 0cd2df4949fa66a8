"""Prefetching: the same items, one item ahead, errors in place."""

import pytest

from bertjax.data.pipeline import prefetch_items


def made(events: list, fails_at: int = -1):
    for number in range(4):
        if number == fails_at:
            raise ValueError(number)
        events.append(number)
        yield number


def test_prefetching_yields_the_same_items():
    assert list(prefetch_items(made([]))) == [0, 1, 2, 3]
    assert list(prefetch_items([])) == []
    assert list(prefetch_items([None, None])) == [None, None]


def test_one_item_is_prefetched_and_no_more():
    events = []
    items = prefetch_items(made(events))
    assert events == []
    next(items)
    items.close()  # waits for the item being prefetched
    assert events == [0, 1]


def test_an_error_is_raised_in_place_of_its_item():
    items = prefetch_items(made([], fails_at=2))
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(items)
