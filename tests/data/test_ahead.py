"""One item ahead: the same items, no more than one too many, errors in their place."""

import pytest

from bertjax.data.pipeline import prefetch_items


def made(events: list, fails_at: int = -1):
    for number in range(4):
        if number == fails_at:
            raise ValueError(number)
        events.append(number)
        yield number


def test_the_items_are_the_same():
    assert list(prefetch_items(made([]))) == [0, 1, 2, 3]
    assert list(prefetch_items([])) == []
    assert list(prefetch_items([None, None])) == [None, None]


def test_the_next_one_is_made_while_one_is_used_and_no_more():
    events = []
    items = prefetch_items(made(events))
    assert events == []
    next(items)
    items.close()  # waits for what was begun
    assert events == [0, 1]


def test_an_error_comes_where_the_item_would():
    items = prefetch_items(made([], fails_at=2))
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(items)
