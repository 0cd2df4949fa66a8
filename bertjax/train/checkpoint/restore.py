"""Restore the arrays of a checkpoint with Orbax, onto any mesh, or as numpy arrays.

Orbax is imported at first use; its logging is silenced, its errors are raised.
"""

import functools
import logging
import os
import pathlib
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from bertjax.errors import UserError
from bertjax.io import copies, storage
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import trees

_MAX_ROWS = 8

_ORBAX = f"{os.sep}orbax{os.sep}"


def load(checkpoint: pathlib.Path, target: PyTree) -> PyTree:
    """Restores a whole tree with the shardings of a target.

    Args:
      checkpoint: The folder of one step.
      target: Arrays or `jax.ShapeDtypeStruct`s. Their shardings, if any, may be on another mesh
        than that of the save.

    Raises:
      UserError: names, shapes or types differ; a table shows the first that do.
    """
    leaves = trees.flatten_names(target)
    check(checkpoint, checkpoint_folder.read_record(checkpoint).arrays, leaves)
    return trees.unflatten_like(target, _read(checkpoint, leaves, _restore_args))


def load_numpy(checkpoint: pathlib.Path, prefix: str = "") -> trees.Nested:
    """Reads the subtree at a path, such as "params/encoder", as nested dicts of numpy arrays."""
    arrays = checkpoint_folder.read_record(checkpoint).arrays
    within = f"{prefix}/" if prefix else ""
    names = [name for name in arrays if name.startswith(within)]
    target = {
        name: jax.ShapeDtypeStruct(arrays[name]["shape"], arrays[name]["dtype"]) for name in names
    }
    leaves = _read(checkpoint, target, lambda ocp, _: ocp.RestoreArgs(restore_type=np.ndarray))
    return trees.nest({name.removeprefix(within): leaves[name] for name in names})


def evaluation_prefix(checkpoint: pathlib.Path) -> str:
    """The path of the weights to evaluate: the average if the run has one, else the parameters."""
    arrays = checkpoint_folder.read_record(checkpoint).arrays
    averaged = any(name.startswith("average/params/") for name in arrays)
    return "average/params" if averaged else "params"


def load_weights(checkpoint: pathlib.Path, part: str = "") -> trees.Nested:
    """Reads the weights to evaluate as numpy arrays, all or those of a part such as "encoder"."""
    return load_numpy(checkpoint, "/".join(filter(None, [evaluation_prefix(checkpoint), part])))


def describe(leaves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Shape and type of named arrays, as in `checkpoint.json`."""
    return {
        name: {"shape": list(np.shape(leaf)), "dtype": np.dtype(leaf.dtype).name}
        for name, leaf in leaves.items()
    }


def check(
    checkpoint: pathlib.Path, found: Mapping[str, Mapping], target: Mapping[str, Any]
) -> None:
    """Checks the names, shapes and types of a checkpoint's arrays.

    Raises:
      UserError: with a table of the first differences.
    """
    expected = describe(target)
    names = dict.fromkeys([*expected, *found])
    differing = [name for name in names if found.get(name) != expected.get(name)]
    if not differing:
        return
    rows = [("array", "checkpoint", "this run")]
    rows += [(name, _text(found, name), _text(expected, name)) for name in differing[:_MAX_ROWS]]
    raise UserError(
        f"{checkpoint} does not match this run: {len(differing)} of {len(names)} arrays differ; "
        f"use the config of the checkpoint, or another --workdir\n" + _table(rows)
    )


def _read(checkpoint: pathlib.Path, target: Mapping[str, Any], restore_args: Callable) -> dict:
    ocp = orbax()
    stored = {name: leaf for name, leaf in target.items() if leaf.size}
    tree = trees.nest(stored)
    args = trees.nest({name: restore_args(ocp, leaf) for name, leaf in stored.items()})
    leaves = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in target.items()}
    if stored:
        folder = copies.orbax_path(checkpoint)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            restored = checkpointer.restore(
                storage.absolute(folder) / checkpoint_folder.STATE,
                args=ocp.args.PyTreeRestore(tree, restore_args=args, partial_restore=True),
            )
        leaves |= trees.flatten_names(restored)
    return leaves


def _restore_args(ocp, leaf) -> Any:
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(
        jax.local_devices()[0]
    )
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def _text(arrays: Mapping[str, Mapping], name: str) -> str:
    if name not in arrays:
        return "absent"
    return f"{arrays[name]['dtype']}{list(arrays[name]['shape'])}"


def _table(rows: list[tuple[str, str, str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [map(str.ljust, row, widths) for row in rows]
    return "\n".join(("  " + "  ".join(row)).rstrip() for row in padded)


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
