"""Divide the devices and cores of this machine among processes that run at the same time."""

import contextlib
import os
from collections.abc import Mapping

from bertjax.runtime import host


def environment(
    variables: Mapping[str, str], share: int, num_shares: int, max_devices: int | None = None
) -> dict[str, str]:
    """Returns environment variables that restrict a process to its share of the GPUs or TPU chips.

    Args:
      variables: The environment of this process.
      share: Number of the share, from 0.
      num_shares: How many processes run at the same time.
      max_devices: Upper limit of GPUs a process; None for none.
    """
    variables = dict(variables)
    if num_shares == 1 or variables.get("JAX_PLATFORMS", "") == "cpu":
        return variables
    if gpus := _visible_gpus(variables):
        own = _slice(gpus, share, num_shares, max_devices)
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        processes_per_gpu = -(-num_shares // len(gpus))
        if processes_per_gpu > 1:
            # JAX preallocates three quarters of a GPU, which leaves no memory for a second process.
            fraction = f"{0.9 / processes_per_gpu:.2f}"
            variables.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction)
    elif chips := host.list_tpu_chips():
        (chip,) = _slice(chips, share, num_shares, 1)
        # libtpu requires all three for a process that has one chip of its host.
        variables["TPU_VISIBLE_DEVICES"] = chip
        variables["TPU_CHIPS_PER_PROCESS_BOUNDS"] = "1,1,1"
        variables["TPU_PROCESS_BOUNDS"] = "1,1,1"
    return variables


def _slice(devices: list[str], share: int, num_shares: int, limit: int | None) -> list[str]:
    """The devices of a share. All shares have the same size, so that all runs are equally fast."""
    size = min(max(1, len(devices) // num_shares), limit or len(devices))
    begin = share * size % len(devices)
    return devices[begin : begin + size]


def _visible_gpus(variables: Mapping[str, str]) -> list[str]:
    if visible := variables.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    return host.list_gpus()


def pin_cores(process: int, share: int, num_shares: int) -> None:
    """Restricts a process to its share of the cores, where the system supports CPU affinity.

    Args:
      process: Process id; threads that it has started keep their affinity.
      share: Number of the share, from 0.
      num_shares: How many processes run at the same time.
    """
    if num_shares == 1 or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    own = cores[share::num_shares] or [cores[share % len(cores)]]
    with contextlib.suppress(ProcessLookupError):  # the process may have ended
        os.sched_setaffinity(process, own)
