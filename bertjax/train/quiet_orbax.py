"""Orbax, imported where it is needed and silent: what fails is raised, not logged."""

import functools
import logging
import os
import traceback
from types import ModuleType

_ORBAX = f"{os.sep}orbax{os.sep}"


@functools.cache
def orbax() -> ModuleType:
    """Imports orbax.checkpoint, whose import takes about a second."""
    import orbax.checkpoint

    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_of_others)
    return orbax.checkpoint


def _of_others(record: logging.LogRecord) -> bool:
    """Drops orbax's records: each save's progress, and tracebacks of what it raises as well.

    When several of its writes fail, asyncio tells of all those after the first.
    """
    trace = record.exc_info[2] if record.exc_info else None
    files = [frame.filename for frame in traceback.extract_tb(trace)]
    return not any(_ORBAX in file for file in [record.pathname, *files])
