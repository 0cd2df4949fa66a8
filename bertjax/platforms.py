"""Which devices this machine has, as far as its files tell, and what is set before JAX asks them.

No driver is asked, and no jax imported.
"""

import importlib.util
import os
import pathlib

_PLATFORMS = "JAX_PLATFORMS"
_TPU_ARGUMENTS = "LIBTPU_INIT_ARGS"
_STACK = "--fibers_default_thread_stack_size"


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


def give_tpu_compiler_stack() -> None:
    """Has the compiler for TPUs recurse as deep as it needs; call it before that is loaded.

    Its threads have stacks of 64 KiB, which end where a product has two others merged into it: with
    a segmentation fault. What LIBTPU_INIT_ARGS says already stays.
    """
    said = os.environ.get(_TPU_ARGUMENTS, "")
    if _STACK not in said:
        os.environ[_TPU_ARGUMENTS] = f"{said} {_STACK}={4 * 2**20}".strip()
