"""Which devices this machine has, as far as its files tell: no driver is asked, no jax imported."""

import importlib.util
import os
import pathlib

_PLATFORMS = "JAX_PLATFORMS"


def gpus() -> list[str]:
    """The numbers of NVIDIA's cards."""
    return [str(n) for n, _ in enumerate(pathlib.Path("/proc/driver/nvidia/gpus").glob("*"))]


def tpu_chips() -> list[str]:
    """The numbers of TPU chips."""
    found = [*pathlib.Path("/dev").glob("accel[0-9]*"), *pathlib.Path("/dev/vfio").glob("[0-9]*")]
    return [str(n) for n, _ in enumerate(found)]


def leave_out_absent_tpus() -> None:
    """Has JAX look for no TPU where there is none; call it before jax is imported.

    Where the compiler for TPUs is installed, its runtime is too, which complains at length of every
    machine that is no part of a Cloud TPU. What JAX_PLATFORMS says already stays.
    """
    others = gpus() or pathlib.Path("/dev/kfd").exists()
    if _PLATFORMS in os.environ or others or tpu_chips():
        return
    if importlib.util.find_spec("libtpu") is not None:
        os.environ[_PLATFORMS] = "cpu"
