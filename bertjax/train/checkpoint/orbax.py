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
        logging.getLogger(name).addFilter(_is_not_of_orbax)
    return orbax.checkpoint


def array_handler() -> Any:
    """Builds Orbax's handler for trees of arrays.

    By default each device with a replica of an array writes a part of it, for which Orbax compiles
    a program per shape. Devices of a CPU share one memory: it would gain nothing, and compilation
    would take many times as long as the save.
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


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    """Filters out Orbax's log records: progress, and tracebacks of errors that it also raises.

    When several of its writes fail, asyncio logs all those after the first.
    """
    trace = record.exc_info[2] if record.exc_info else None
    files = [frame.filename for frame in traceback.extract_tb(trace)]
    return not any(_ORBAX in file for file in [record.pathname, *files])
