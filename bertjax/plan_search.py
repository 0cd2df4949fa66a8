"""Which mesh, remat policy and microbatches a step takes: settings tried, compiled and ranked.

fitting   a phase that does not fit -> the gentlest change with which it does
search    all that makes sense -> the fastest first
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax import build
from bertjax.config import changed
from bertjax.errors import UserError
from bertjax.planning import Say, StepPlan

_FROM_GENTLE_TO_HARSH = ("none", "dots", "dots_with_no_batch_dims", "full")
_CLEARLY = 0.97
"""Of its time a step takes so much at most where another cut of the batch is worth trying on."""


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
    config: ConfigDict, phase: build.Phase, compile_step: Compile, say: Say
) -> StepPlan | None:
    """The gentlest change with which a phase fits: keep less, then spread parameters, then cut."""
    for settings in _gentler(config):
        step = _tried(settings, phase, compile_step, say)
        if isinstance(step, StepPlan) and step.fits:
            return step
    return None


def _tried(
    config: ConfigDict, phase: build.Phase, compile_step: Compile, say: Say
) -> StepPlan | UserError:
    """A step, or why there is none; it is told where the settings could have been."""
    try:
        return compile_step(config, phase)
    except CompilerDiedError as error:
        say(str(error))
        return error
    except UserError as error:
        return error


def _gentler(config: ConfigDict) -> Iterator[ConfigDict]:
    begin = _FROM_GENTLE_TO_HARSH.index(config.model.remat) + 1
    for policy in _FROM_GENTLE_TO_HARSH[begin:]:
        yield changed(config, {"model.remat": policy})
    spread = {"model.remat": "full", "mesh.data": 1, "mesh.fsdp": -1}
    yield changed(config, spread)
    for times in (2, 4, 8, 16, 32):
        parts = config.data.microbatches * times
        yield changed(config, {"model.remat": "full", "data.microbatches": parts})
        yield changed(config, spread | {"data.microbatches": parts})


def search(
    config: ConfigDict, phase: build.Phase, devices: int, compile_step: Compile, say: Say
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
        for changes in _sensible(config, devices, tried):
            step = _tried(changed(config, changes), phase, compile_step, say)
            if isinstance(step, StepPlan):
                tried.append((changes, step))
            else:
                mistakes.append(step)
    except KeyboardInterrupt:
        if not tried:
            raise
        say("interrupted: this ranks what was compiled until then")
    if not tried:
        raise mistakes[0]
    return [step for _, step in sorted(tried, key=_rank)]


def _sensible(
    config: ConfigDict, devices: int, tried: Sequence[_Attempt]
) -> Iterator[dict[str, Any]]:
    for sizes in _meshes(config, devices):
        for policy in _FROM_GENTLE_TO_HARSH:
            yield {**sizes, "model.remat": policy}
    parts, before = config.data.microbatches, None
    while tried:
        settings, step = min(tried, key=_rank)
        if before is not None and not _clearly_better(step, before):
            break
        before, parts = step, 2 * parts
        harshest = _FROM_GENTLE_TO_HARSH.index(settings["model.remat"] if step.fits else "full")
        for policy in _FROM_GENTLE_TO_HARSH[: harshest + 1]:
            yield {**settings, "model.remat": policy, "data.microbatches": parts}


def _clearly_better(step: StepPlan, before: StepPlan) -> bool:
    if not before.fits:
        return step.fits or step.memory.needed < before.memory.needed
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
