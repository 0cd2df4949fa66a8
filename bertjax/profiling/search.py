"""Search mesh, remat policy and microbatches of a step: compile candidates and rank them.

find_fitting   phases that do not fit in memory -> the smallest change with which they fit
search         all candidates -> compiled steps, the fastest first
to_overrides   compiled steps -> the command line overrides of their settings
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax import build
from bertjax.config import replace_fields
from bertjax.errors import UserError
from bertjax.profiling.plan import Log, StepPlan
from bertjax.train.sharding import MESH_AXES

_REMAT_POLICIES = ("none", "dots", "dots_with_no_batch_dims", "full")
"""Policies in the order of increasing rematerialisation, and decreasing memory."""

_IMPROVEMENT = 0.97
"""Maximum ratio of time, or memory, to that of the previous number of microbatches, at which the
next number is compiled too."""

_MICROBATCH_FACTORS = (1, 2, 4, 8, 16, 32)


class CompilerDiedError(UserError):
    """The compiler process crashed or timed out."""


Compile = Callable[[ConfigDict, build.Phase], StepPlan]
"""Compiles the step of a phase for a topology.

Raises:
  UserError: the mesh does not divide the devices, or the batch does not divide over the mesh.
  CompilerDiedError: the compiler crashed or timed out.
"""

_Attempt = tuple[dict[str, Any], StepPlan]
"""Changes of the config, and the step compiled with them."""


def find_fitting(
    config: ConfigDict, steps: Sequence[StepPlan], compile_step: Compile, log: Log
) -> list[StepPlan] | None:
    """Finds the smallest change with which all phases of a run fit in memory.

    Tries more microbatches per phase, while these reduce memory; then remat policies that save
    fewer residuals, then parameters sharded over all devices.

    Args:
      config: Config of the run.
      steps: The compiled step of each phase.
      compile_step: Compiles a step.
      log: Receives lines for the user.

    Returns:
      A step for each phase, or None if no change makes all of them fit.
    """
    for changes in _memory_changes(config):
        candidate = replace_fields(config, changes)
        found = []
        for step in steps:
            known = None if changes else step
            fits = _with_microbatches(candidate, step.phase, known, compile_step, log)
            if fits is None:
                break
            found.append(fits)
        else:
            return found
    return None


def _memory_changes(config: ConfigDict) -> Iterator[dict[str, Any]]:
    """Yields changes of the config that need less and less memory."""
    yield {}
    sharded = {"mesh.data": 1, "mesh.fsdp": -1}
    model = build.model_values(config.model)
    if "remat" not in model:
        yield sharded
        return
    start = _REMAT_POLICIES.index(model["remat"]) + 1
    for policy in _REMAT_POLICIES[start:]:
        yield {"model.remat": policy}
    yield {"model.remat": "full"} | sharded


def _with_microbatches(
    config: ConfigDict,
    phase: build.Phase,
    known: StepPlan | None,
    compile_step: Compile,
    log: Log,
) -> StepPlan | None:
    """Finds the smallest number of microbatches that fits.

    Args:
      config: Config of the run.
      phase: The phase.
      known: Its step with the phase's own microbatches, if it is compiled already.
      compile_step: Compiles a step.
      log: Receives lines for the user.
    """
    before = None
    for factor in _MICROBATCH_FACTORS:
        split = dataclasses.replace(phase, microbatches=factor * phase.microbatches)
        step = known if known and factor == 1 else _try_compile(config, split, compile_step, log)
        if not isinstance(step, StepPlan):
            continue
        if step.fits:
            return step
        if before is not None and not _improves(step, before):
            return None
        before = step
    return None


def _try_compile(
    config: ConfigDict, phase: build.Phase, compile_step: Compile, log: Log
) -> StepPlan | UserError:
    """Compiles a step, or returns the error; crashes of the compiler are logged."""
    try:
        return compile_step(config, phase)
    except CompilerDiedError as error:
        log(str(error))
        return error
    except UserError as error:
        return error


def search(
    config: ConfigDict, phase: build.Phase, num_devices: int, compile_step: Compile, log: Log
) -> list[StepPlan]:
    """Compiles all candidates, and ranks them: first those that fit, the fastest first.

    Candidates are all meshes and remat policies; then the best mesh with more microbatches, while
    that improves it: smaller microbatches need less memory, and so can need less
    rematerialisation. An interrupted search ranks the steps compiled so far.

    Args:
      config: Config of the run.
      phase: The phase.
      num_devices: Number of devices of the topology.
      compile_step: Compiles a step.
      log: Receives lines for the user.

    Raises:
      UserError: the first error, if no candidate could be compiled.
    """
    attempts: list[_Attempt] = []
    errors = []
    try:
        for changes, parts in _candidates(config, phase.microbatches, num_devices, attempts):
            split = dataclasses.replace(phase, microbatches=parts)
            step = _try_compile(replace_fields(config, changes), split, compile_step, log)
            if isinstance(step, StepPlan):
                attempts.append((changes, step))
            else:
                errors.append(step)
    except KeyboardInterrupt:
        if not attempts:
            raise
        log("interrupted: ranking the steps compiled so far")
    if not attempts:
        raise errors[0]
    return [step for _, step in sorted(attempts, key=_rank)]


def _candidates(
    config: ConfigDict, microbatches: int, num_devices: int, attempts: Sequence[_Attempt]
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields changes of the config and numbers of microbatches, given the `attempts` so far."""
    for sizes in _meshes(config, num_devices):
        for policy in _REMAT_POLICIES:
            yield {**sizes, "model.remat": policy}, microbatches
    before = None
    while attempts:
        changes, step = min(attempts, key=_rank)
        if before is not None and not _improves(step, before):
            break
        before, microbatches = step, 2 * microbatches
        last = _REMAT_POLICIES.index(changes["model.remat"] if step.fits else "full")
        for policy in _REMAT_POLICIES[: last + 1]:
            yield {**changes, "model.remat": policy}, microbatches


def _improves(step: StepPlan, before: StepPlan) -> bool:
    if not before.fits:
        return step.fits or step.memory.needed < _IMPROVEMENT * before.memory.needed
    return step.seconds["step"] < _IMPROVEMENT * before.seconds["step"]


def _rank(attempt: _Attempt) -> tuple[bool, float]:
    step = attempt[1]
    return not step.fits, step.seconds["step"] if step.fits else step.memory.needed


def _meshes(config: ConfigDict, num_devices: int) -> Iterator[dict[str, int]]:
    """Yields data parallelism; parameters sharded over 8 or all devices; heads over 2 and 4."""
    for fsdp in dict.fromkeys([1, min(8, num_devices), num_devices]):
        yield {"mesh.data": num_devices // fsdp, "mesh.fsdp": fsdp, "mesh.tensor": 1}
    num_heads = build.model_values(config.model).get("num_attention_heads", 1)
    for tensor in (2, 4):
        if num_devices % tensor == 0 and num_heads % tensor == 0:
            yield {"mesh.data": num_devices // tensor, "mesh.fsdp": 1, "mesh.tensor": tensor}


def to_overrides(config: ConfigDict, steps: Sequence[StepPlan]) -> list[str]:
    """Returns the command line overrides with which a run uses the settings of compiled steps.

    Args:
      config: Config without these settings.
      steps: Compiled steps of some or all of its phases.
    """
    settings = steps[0].settings
    sizes = {axis: settings.get(axis, 1) for axis in MESH_AXES if config.mesh[axis] != -1}
    changes = {f"mesh.{axis}": n for axis, n in sizes.items() if n != config.mesh[axis]}
    if settings["remat"] != build.model_values(config.model).get("remat", "none"):
        changes["model.remat"] = settings["remat"]
    planned = {_unsplit(step.phase): step.phase for step in steps}
    before = build.phases(config)
    phases = [planned.get(_unsplit(phase), phase) for phase in before]
    parts = build.microbatches(phases)
    if phases != before and isinstance(parts, int):
        changes["data.microbatches"] = parts
        before = build.phases(replace_fields(config, {"data.microbatches": parts}))
    if phases != before:
        fields = [(p.steps, p.max_seq_length, p.batch_size, p.microbatches) for p in phases]
        listed = ",".join(str(phase).replace(" ", "") for phase in fields)
        changes.pop("data.microbatches", None)  # not used by phases with their own
        changes["data.phases"] = f"'({listed},)'"
    return [f"--config.{name}={value}" for name, value in changes.items()]


def _unsplit(phase: build.Phase) -> build.Phase:
    return dataclasses.replace(phase, microbatches=1)
