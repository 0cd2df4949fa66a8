"""Run the TPU compiler in a child process.

The compiler aborts its process when an internal check fails or the stack overflows. Steps compiled
before are kept, and the next step is compiled in a new process.
"""

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import jax
from ml_collections import ConfigDict

from bertjax import build
from bertjax.errors import UserError
from bertjax.layers.attention_kernels import log_kernel_choice
from bertjax.profiling import plan as profiling_plan
from bertjax.profiling.plan import StepPlan
from bertjax.profiling.search import CompilerDiedError
from bertjax.runtime import chips, host

_TIMEOUT_HOURS = 2
_REMEDY = "try another mesh, remat policy or number of microbatches, or --search"


class CompilerProcess:
    """Compiles steps for a topology in a child process; a context manager that ends it."""

    def __init__(self, topology: str, slices: int) -> None:
        """Starts the process, without waiting for it.

        Args:
          topology: Name of the topology of a slice; see `runtime/chips.py`.
          slices: Number of slices.
        """
        self._arguments = topology, slices
        self._process: BaseProcess
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._calls, child_end = context.Pipe()
        arguments = child_end, *self._arguments
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        child_end.close()

    def __enter__(self) -> "CompilerProcess":
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()

    def _end(self) -> None:
        self._calls.close()
        self._process.kill()
        self._process.join()

    def __call__(self, config: ConfigDict, phase: build.Phase) -> StepPlan:
        """Compiles the step of a phase.

        Raises:
          UserError: the mesh does not divide the devices, or the batch does not divide over the
            mesh.
          CompilerDiedError: the compiler crashed or timed out.
        """
        if not self._process.is_alive():
            self._end()
            self._start()
        try:
            self._calls.send((config, phase))
            finished = self._calls.poll(_TIMEOUT_HOURS * 3600)
            result = self._calls.recv() if finished else None
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            status = signal.Signals(-code).name if code < 0 else f"status {code}"
            raise CompilerDiedError(f"the TPU compiler ended with {status}; {_REMEDY}") from None
        if result is None:
            self._end()
            raise CompilerDiedError(
                f"the TPU compiler did not finish within {_TIMEOUT_HOURS} hours; {_REMEDY}"
            )
        if isinstance(result, UserError):
            raise result
        return result


def _serve(calls: Connection, topology: str, slices: int) -> None:
    """Receives configs with phases, and sends compiled steps or user errors."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would handle it only after compilation
    threading.Thread(target=_end_with_parent, daemon=True).start()
    jax.config.update("jax_enable_compilation_cache", False)  # cannot be read without a chip
    host.enlarge_tpu_compiler_stack()
    described = chips.get_topology(topology, slices)
    with log_kernel_choice(_log):
        while True:
            try:
                config, phase = calls.recv()
            except EOFError:
                return
            try:
                calls.send(profiling_plan.plan_step(config, phase, described, _log))
            except UserError as error:
                calls.send(error)


def _end_with_parent() -> None:
    """Ends this process when its parent was killed, also in the middle of a compilation."""
    parent = multiprocessing.parent_process()
    if parent:
        wait([parent.sentinel])
        os._exit(1)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
