"""Import Orbax lazily and silence its logging; errors are raised."""

import functools
import logging
import os
import traceback
from types import ModuleType
from typing import Any

import jax
import numpy as np

_ORBAX = f"{os.sep}orbax{os.sep}"


@functools.cache
def orbax() -> ModuleType:
    """Imports orbax.checkpoint, whose import takes about a second."""
    import orbax.checkpoint

    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_of_others)
    return orbax.checkpoint


def array_handler() -> Any:
    """What writes trees of arrays.

    Orbax lets each device that holds a copy of an array write a part of it, and compiles a program
    for every shape to cut these parts. Among devices of a CPU, which share its memory, that gains
    nothing, and would take many times as long as the first save itself.
    """
    ocp = orbax()
    if jax.default_backend() != "cpu":
        return ocp.PyTreeCheckpointHandler()
    handlers = ocp.type_handlers
    registry = handlers.create_type_handler_registry(
        (jax.Array, handlers.ArrayHandler(use_replica_parallel=False)),
        (np.ndarray, handlers.NumpyHandler()),
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)


def _of_others(record: logging.LogRecord) -> bool:
    """Drops orbax's records: each save's progress, and tracebacks of what it raises as well.

    When several of its writes fail, asyncio tells of all those after the first.
    """
    trace = record.exc_info[2] if record.exc_info else None
    files = [frame.filename for frame in traceback.extract_tb(trace)]
    return not any(_ORBAX in file for file in [record.pathname, *files])
