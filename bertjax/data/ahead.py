"""Work that is done one item ahead of who asks for it."""

import concurrent.futures
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items: while one is used, a thread makes the next one.

    Two are in memory at a time. What making one raises is raised where it would be asked for.
    """
    source = iter(items)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, source, _END)
        while (item := following.result()) is not _END:
            following = thread.submit(next, source, _END)
            yield item
