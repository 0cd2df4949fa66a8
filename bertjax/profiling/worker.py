"""Run the TPU compiler in a child process, which can crash or be killed.

It is a library that aborts its process where it fails a check of its own, or runs out of stack.
What was compiled before is not lost with it, and what comes next is compiled in a new process.
"""

import multiprocessing
import signal
import sys
from multiprocessing.connection import Connection
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

_HOURS = 2
_REMEDY = "take another mesh, remat policy or number of microbatches; --search tries them"


class CompilerProcess:
    """Compiles steps for one topology, for `bertjax.profiling.search`; close it at the end."""

    def __init__(self, topology: str, slices: int) -> None:
        """Starts it, and does not wait.

        Args:
          topology: Of a slice, by a name that `bertjax.runtime.chips` knows.
          slices: How many.
        """
        self._arguments = topology, slices
        self._process: BaseProcess
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._calls, theirs = context.Pipe()
        arguments = theirs, *self._arguments
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

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
          UserError: the mesh does not divide over the devices, or a batch over the mesh.
          CompilerDiedError: no step came out of it.
        """
        if not self._process.is_alive():
            self._end()
            self._begin()
        try:
            self._calls.send((config, phase))
            answered = self._calls.poll(_HOURS * 3600)
            answer = self._calls.recv() if answered else None
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            raise CompilerDiedError(f"the compiler for TPUs ended with {how}: {_REMEDY}") from None
        if answer is None:
            self._end()
            raise CompilerDiedError(f"not compiled after {_HOURS} hours: {_REMEDY}")
        if isinstance(answer, UserError):
            raise answer
        return answer


def _serve(calls: Connection, topology: str, slices: int) -> None:
    """Answers every config and phase with a step, or with the mistake that is in them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which else waits until all is compiled
    jax.config.update("jax_enable_compilation_cache", False)  # nothing is read back without a chip
    host.enlarge_tpu_compiler_stack()
    described = chips.get_topology(topology, slices)
    with log_kernel_choice(_log):
        while True:
            try:
                config, phase = calls.recv()
            except EOFError:
                return
            try:
                calls.send(profiling_plan.compiled(config, phase, described, _log))
            except UserError as mistake:
                calls.send(mistake)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
