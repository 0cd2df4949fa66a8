"""Search mesh, remat policy and microbatches of a step: compile candidates and rank them.

fitting     phases that do not fit -> the gentlest change with which they do
search      all that makes sense -> the fastest first
overrides   what came of either -> the words that make it so
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax import build
from bertjax.config import changed
from bertjax.errors import UserError
from bertjax.profiling.plan import Log, StepPlan
from bertjax.train.sharding import MESH_AXES

_FROM_GENTLE_TO_HARSH = ("none", "dots", "dots_with_no_batch_dims", "full")
_CLEARLY = 0.97
"""Of its time, or memory, a step takes so much at most where another cut is worth trying on."""
_TIMES = (1, 2, 4, 8, 16, 32)


class CompilerDiedError(UserError):
    """The compiler ended its process, or did not come to an end."""


Compile = Callable[[ConfigDict, build.Phase], StepPlan]
"""Compiles the step of a phase for some topology.

Raises:
  UserError: the mesh does not divide over the devices, or a batch over the mesh.
  CompilerDiedError: no step came out of it.
"""

_Attempt = tuple[dict[str, Any], StepPlan]
"""What was changed in the config, and what came of it."""


def fitting(
    config: ConfigDict, steps: Sequence[StepPlan], compile_step: Compile, log: Log
) -> list[StepPlan] | None:
    """The gentlest change with which all phases of a run fit, or None.

    A phase takes more microbatches, while these need clearly less; then all keep less for their
    gradients, then parameters are spread over the devices.
    """
    for changes in _gentler(config):
        settings = changed(config, changes)
        found = []
        for step in steps:
            known = None if changes else step
            fits = _in_more_parts(settings, step.phase, known, compile_step, log)
            if fits is None:
                break
            found.append(fits)
        else:
            return found
    return None


def _gentler(config: ConfigDict) -> Iterator[dict[str, Any]]:
    yield {}
    begin = _FROM_GENTLE_TO_HARSH.index(config.model.remat) + 1
    for policy in _FROM_GENTLE_TO_HARSH[begin:]:
        yield {"model.remat": policy}
    yield {"model.remat": "full", "mesh.data": 1, "mesh.fsdp": -1}


def _in_more_parts(
    config: ConfigDict,
    phase: build.Phase,
    known: StepPlan | None,
    compile_step: Compile,
    log: Log,
) -> StepPlan | None:
    """The step in as few microbatches as fit; `known` is what came of the phase as it is."""
    before = None
    for times in _TIMES:
        cut = dataclasses.replace(phase, microbatches=times * phase.microbatches)
        step = known if known and times == 1 else _tried(config, cut, compile_step, log)
        if not isinstance(step, StepPlan):
            continue
        if step.fits:
            return step
        if before is not None and not _clearly_better(step, before):
            return None
        before = step
    return None


def _tried(
    config: ConfigDict, phase: build.Phase, compile_step: Compile, log: Log
) -> StepPlan | UserError:
    """A step, or why there is none; it is told where the settings could have been."""
    try:
        return compile_step(config, phase)
    except CompilerDiedError as error:
        log(str(error))
        return error
    except UserError as error:
        return error


def search(
    config: ConfigDict, phase: build.Phase, devices: int, compile_step: Compile, log: Log
) -> list[StepPlan]:
    """What makes sense on so many devices; what fits comes first, fastest first.

    All meshes and remat policies; then the best mesh in more microbatches, while that is clearly
    better: fewer sequences at a time are held in less memory, and may need less computed again.
    An interrupted search ranks what it has.

    Raises:
      UserError: the first mistake, where nothing could be compiled.
    """
    tried: list[_Attempt] = []
    mistakes = []
    try:
        for changes, parts in _sensible(config, phase.microbatches, devices, tried):
            cut = dataclasses.replace(phase, microbatches=parts)
            step = _tried(changed(config, changes), cut, compile_step, log)
            if isinstance(step, StepPlan):
                tried.append((changes, step))
            else:
                mistakes.append(step)
    except KeyboardInterrupt:
        if not tried:
            raise
        log("interrupted: this ranks what was compiled until then")
    if not tried:
        raise mistakes[0]
    return [step for _, step in sorted(tried, key=_rank)]


def _sensible(
    config: ConfigDict, parts: int, devices: int, tried: Sequence[_Attempt]
) -> Iterator[tuple[dict[str, Any], int]]:
    """Changes of the config, and microbatches."""
    for sizes in _meshes(config, devices):
        for policy in _FROM_GENTLE_TO_HARSH:
            yield {**sizes, "model.remat": policy}, parts
    before = None
    while tried:
        settings, step = min(tried, key=_rank)
        if before is not None and not _clearly_better(step, before):
            break
        before, parts = step, 2 * parts
        harshest = _FROM_GENTLE_TO_HARSH.index(settings["model.remat"] if step.fits else "full")
        for policy in _FROM_GENTLE_TO_HARSH[: harshest + 1]:
            yield {**settings, "model.remat": policy}, parts


def _clearly_better(step: StepPlan, before: StepPlan) -> bool:
    if not before.fits:
        return step.fits or step.memory.needed < _CLEARLY * before.memory.needed
    return step.seconds["step"] < _CLEARLY * before.seconds["step"]


def _rank(attempt: _Attempt) -> tuple[bool, float]:
    step = attempt[1]
    return not step.fits, step.seconds["step"] if step.fits else step.memory.needed


def _meshes(config: ConfigDict, devices: int) -> Iterator[dict[str, int]]:
    """All data; parameters spread over 8, or all; heads over 2 and 4."""
    spread = dict.fromkeys([1, min(8, devices), devices])
    for fsdp in spread:
        yield {"mesh.data": devices // fsdp, "mesh.fsdp": fsdp, "mesh.tensor": 1}
    for tensor in (2, 4):
        if devices % tensor == 0 and config.model.num_attention_heads % tensor == 0:
            yield {"mesh.data": devices // tensor, "mesh.fsdp": 1, "mesh.tensor": tensor}


def overrides(config: ConfigDict, steps: Sequence[StepPlan]) -> list[str]:
    """The words of a command line that let a run take these steps.

    Args:
      config: Without them.
      steps: Of some of its phases, or all.
    """
    settings = steps[0].settings
    sizes = {axis: settings.get(axis, 1) for axis in MESH_AXES if config.mesh[axis] != -1}
    changes = {f"mesh.{axis}": n for axis, n in sizes.items() if n != config.mesh[axis]}
    if settings["remat"] != config.model.remat:
        changes["model.remat"] = settings["remat"]
    planned = {_uncut(step.phase): step.phase for step in steps}
    before = build.phases(config)
    phases = [planned.get(_uncut(phase), phase) for phase in before]
    parts = build.microbatches(phases)
    if phases != before and isinstance(parts, int):
        changes["data.microbatches"] = parts
        before = build.phases(changed(config, {"data.microbatches": parts}))
    if phases != before:
        listed = ",".join(str(dataclasses.astuple(phase)).replace(" ", "") for phase in phases)
        changes.pop("data.microbatches", None)  # phases with their own do not read it
        changes["data.phases"] = f"'({listed},)'"
    return [f"--config.{name}={value}" for name, value in changes.items()]


def _uncut(phase: build.Phase) -> build.Phase:
    return dataclasses.replace(phase, microbatches=1)
