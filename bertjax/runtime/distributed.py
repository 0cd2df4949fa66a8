"""Connect the processes of a job, and check that they run the same config.

Processes first connect in `runtime/rendezvous.py`, because `jax.distributed` aborts a process whose
peers do not connect, with a stack trace that does not name them.
"""

import os
import re
import zlib

import jax
import numpy as np

import bertjax
from bertjax.errors import TemporaryError, UserError
from bertjax.runtime.rendezvous import COORDINATOR, PROCESS, PROCESSES, read_timeout, rendezvous

_HEARTBEAT_SECONDS = 30
_TASK_NUMBER = re.compile(r"^(?:.*task:)?(\d+)$", re.MULTILINE)
_BARRIER_VARIABLE, _BARRIER_SECONDS = "BERTJAX_BARRIER_TIMEOUT", 3600


def connect(distributed: bool) -> None:
    """Initialise `jax.distributed` for a job of several processes; do nothing for a single one.

    Call this before JAX initialises its devices. If a process dies later, JAX ends all others.

    Args:
      distributed: Whether a scheduler (Slurm, GKE, Cloud TPU) started several processes; JAX then
        reads their addresses from the scheduler. `bertjax launch local` sets environment variables
        instead.

    Raises:
      TemporaryError: Not all processes connected in time.
      UserError: The environment variables are invalid.
    """
    job = _job_from_environment(*(map(os.environ.get, (COORDINATOR, PROCESSES, PROCESS))))
    if not distributed and not job:
        return
    if jax.config.jax_platforms == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if job:
        rendezvous(*job.values())
    try:
        jax.distributed.initialize(**job, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
    except ValueError as error:
        raise UserError(
            f"--distributed: detected no cluster scheduler ({error}); start the processes "
            f"with `bertjax launch local`, or set {COORDINATOR}, {PROCESSES} and {PROCESS}"
        ) from None


def _job_from_environment(coordinator: str | None, count: str | None, number: str | None) -> dict:
    """Arguments of `jax.distributed.initialize`; empty if no coordinator is set."""
    if coordinator is None:
        return {}
    try:
        job = {"num_processes": int(count or ""), "process_id": int(number or "")}
    except ValueError:
        raise UserError(
            f"invalid environment: got {PROCESSES}={count} and {PROCESS}={number}, expected the "
            "number of processes and the index of this one, from 0"
        ) from None
    return {"coordinator_address": coordinator, **job}


def barrier(where: str) -> None:
    """Wait for the other processes of the job: an hour, or BERTJAX_BARRIER_TIMEOUT seconds.

    Unlike a collective operation, this fails after a timeout and names the missing processes.

    Args:
      where: Name of the barrier, for the error message.

    Raises:
      TemporaryError: Not all processes reached the barrier in time.
    """
    if jax.process_count() == 1:
        return
    from orbax.checkpoint import multihost

    seconds = read_timeout(_BARRIER_VARIABLE, _BARRIER_SECONDS)
    try:
        multihost.get_barrier_sync_fn()(key=where, timeout_ms=round(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        _, timed_out, names = str(error).partition("timed out task names")
        if not timed_out:
            raise
        late = sorted(map(int, _TASK_NUMBER.findall(names)))
        raise TemporaryError(
            f"process {', '.join(map(str, late))} of {jax.process_count()} did not reach barrier "
            f"{where!r} within {seconds:g} s of the first one; look for its error, or raise "
            f"{_BARRIER_VARIABLE}"
        ) from None


def check_identical(where: str = "start", **values: str) -> None:
    """Check that values, and the versions of bertjax and jax, are equal in all processes.

    Args:
      where: Name of the barrier at which they are compared.
      **values: The values by name; the names are for the error message.

    Raises:
      UserError: A value differs; raised in every process.
      TemporaryError: A process was not there in time.
    """
    if jax.process_count() == 1:
        return
    barrier(where)
    from jax.experimental import multihost_utils

    versions = {"version of bertjax": bertjax.__version__, "version of jax": jax.__version__}
    values = versions | values
    own = np.array([zlib.crc32(value.encode()) for value in values.values()], np.uint32)
    gathered = np.asarray(multihost_utils.process_allgather(own)).reshape(-1, len(values))
    for name, hashes in zip(values, gathered.T, strict=True):
        others = [str(number) for number in np.flatnonzero(hashes != hashes[0])]
        if others:
            raise UserError(
                f"the {name} of process {', '.join(others)} differs from that of process 0; start "
                "all processes with the same command, config, files and versions"
            )
