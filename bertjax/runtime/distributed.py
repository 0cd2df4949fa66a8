"""Connect the processes of a job, and check that they run the same config."""

import os
import re
import zlib

import jax
import numpy as np

import bertjax
from bertjax.errors import UserError
from bertjax.runtime.rendezvous import COORDINATOR, PROCESS, PROCESSES, read_timeout, rendezvous

_HEARTBEAT_SECONDS = 30
_ALONE_IN_A_LINE = re.compile(r"^(?:.*task:)?(\d+)$", re.MULTILINE)
_SECONDS_TO_MEET, _USUAL_SECONDS_TO_MEET = "BERTJAX_SECONDS_TO_MEET", 3600


def connect(distributed: bool) -> None:
    """Joins the other processes of the job; does nothing where this one is alone.

    Call it before anything asks JAX for devices. A process that is lost later ends all others.

    Args:
      distributed: Whether the job has several processes that a scheduler has started: Slurm, GKE
        or Cloud TPU then tell each who it is. `bertjax launch` says it by the environment.

    Raises:
      UserError: the environment says it wrongly, or not all came in time.
    """
    who = _who(*(os.environ.get(name) for name in (COORDINATOR, PROCESSES, PROCESS)))
    if not distributed and not who:
        return
    if jax.config.jax_platforms == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if who:
        rendezvous(*who.values())
    try:
        jax.distributed.initialize(**who, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
    except ValueError as error:
        raise UserError(
            f"no scheduler tells this process who it is ({error}): start it with `bertjax launch`, "
            f"or set {COORDINATOR}, {PROCESSES} and {PROCESS}"
        ) from None


def _who(coordinator: str | None, count: str | None, number: str | None) -> dict:
    """What the environment says, as JAX requires it; nothing where it says nothing."""
    if coordinator is None:
        return {}
    try:
        who = {"num_processes": int(count or ""), "process_id": int(number or "")}
    except ValueError:
        raise UserError(
            f"{PROCESSES}={count} and {PROCESS}={number}: expected how many there are, and which "
            "this is, from 0"
        ) from None
    return {"coordinator_address": coordinator, **who}


def barrier(where: str) -> None:
    """Waits for the other processes of the job: an hour, or BERTJAX_SECONDS_TO_MEET.

    Whoever is late is named, where a collective operation would wait without a word.

    Args:
      where: What all have reached, as the user is told.

    Raises:
      UserError: not all came in time.
    """
    if jax.process_count() == 1:
        return
    from orbax.checkpoint import multihost

    seconds = read_timeout(_SECONDS_TO_MEET, _USUAL_SECONDS_TO_MEET)
    try:
        multihost.get_barrier_sync_fn()(key=where, timeout_ms=round(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        _, timed_out, names = str(error).partition("timed out task names")
        if not timed_out:
            raise
        late = sorted(map(int, _ALONE_IN_A_LINE.findall(names)))
        raise UserError(
            f"process {', '.join(map(str, late))} of {jax.process_count()} did not come to "
            f"{where!r} within {seconds:g} s of the first one"
        ) from None


def check_identical(**facts: str) -> None:
    """Compares what all processes of the job are about to do.

    Args:
      **facts: What has to be the same, by the name that the user is told.

    Raises:
      UserError: something differs, here and in every other process; or not all came in time.
    """
    if jax.process_count() == 1:
        return
    barrier("start")
    from jax.experimental import multihost_utils

    facts = {"version of bertjax": bertjax.__version__, "version of jax": jax.__version__, **facts}
    own = np.array([zlib.crc32(value.encode()) for value in facts.values()], np.uint32)
    everybody = np.asarray(multihost_utils.process_allgather(own)).reshape(-1, len(facts))
    for name, values in zip(facts, everybody.T, strict=True):
        others = [str(number) for number in np.flatnonzero(values != values[0])]
        if others:
            raise UserError(
                f"the {name} of process {', '.join(others)} is another than that of process 0: "
                "start all processes alike"
            )
