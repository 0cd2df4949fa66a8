"""Plan a run on hardware that is not present: compile its step, estimate memory and time.

Times are a roofline (Williams et al. 2009): what the chips need at least, with every product at
their peak, every byte at full bandwidth, and collectives on the two links of one dimension of the
torus, or on a chip's share of the network between slices, not hidden behind anything.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from bertjax import build
from bertjax.config import changed
from bertjax.errors import UserError, nearest
from bertjax.interfaces import extent
from bertjax.profiling import dummy, hlo
from bertjax.profiling import memory as profiling_memory
from bertjax.profiling.collectives import SLICES, Collective, find_collectives
from bertjax.runs import teachers
from bertjax.runtime.chips import Topology
from bertjax.train import report, sharding

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\b(\d[\d.]*)([KMGT])\b")
_LINKS = 2
_SHOWN = 5
SECONDS_PER_DAY = 86_400

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """What the compiler says of a step that a chip does not hold.

    Attributes:
      needed: Bytes, of temporaries at least.
      there: Bytes.
    """

    needed: float
    there: float


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """One step of a phase on one topology. Everything is per device unless it says otherwise.

    Attributes:
      phase: Its shape, and how many steps of it the run takes.
      settings: What was asked for: mesh, remat policy, microbatches.
      memory: Bytes by kind, or what was too much.
      model_flops: Of all devices, without recomputation.
      flops: That the step computes, with it.
      memory_bytes: That move between main memory and device.
      collectives: What travels between devices, the largest first.
      largest: The largest arrays: bytes, type, shape, what made them.
      seconds: By cause, of the roofline; `step` is the whole.
    """

    phase: build.Phase
    settings: Mapping[str, Any]
    memory: Mapping[str, float] | OutOfMemory
    model_flops: float = 0.0
    flops: float = 0.0
    memory_bytes: float = 0.0
    collectives: tuple[Collective, ...] = ()
    largest: tuple = ()
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether a chip holds it."""
        return not isinstance(self.memory, OutOfMemory)


def for_accelerator(config: ConfigDict) -> ConfigDict:
    """The config with what it leaves to the device decided as a TPU does."""
    decided = {}
    if config.model.precision == "auto":
        decided["model.precision"] = "bfloat16"
    if config.model.unroll == 0:
        decided["model.unroll"] = 1
    return changed(config, decided)


def with_mesh(config: ConfigDict, text: str) -> ConfigDict:
    """The config with the mesh that the user wrote as "data=64,fsdp=4"; the rest is 1.

    Raises:
      UserError: it is written otherwise.
    """
    sizes = dict.fromkeys(sharding.MESH_AXES, 1)
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in sizes:
            hint = nearest(axis, sharding.MESH_AXES)
            raise UserError(f"--mesh {text}: no mesh axis {axis!r}: {hint}")
        if not re.fullmatch(r"-1|[1-9]\d*", size):
            raise UserError(f"--mesh {text}: expected axes and sizes such as data=64,fsdp=4")
        sizes[axis] = int(size)
    return changed(config, {f"mesh.{axis}": size for axis, size in sizes.items()})


def compiled(config: ConfigDict, phase: build.Phase, topology: Topology, log: Log) -> StepPlan:
    """Compiles the step of a phase.

    Raises:
      UserError: the mesh does not divide over the devices, or a batch over the mesh.
    """
    mesh = build.mesh_on(config, topology.devices, [phase])
    settings = {axis: size for axis, size in mesh.shape.items() if size > 1}
    settings |= {"remat": config.model.remat, "microbatches": phase.microbatches}
    shown = ", ".join(f"{name} {value}" for name, value in settings.items())
    log(f"compiling {phase.batch_size} x {phase.max_seq_length} for {topology.title}: {shown}")
    trainer, rows = dummy.trainer(config, phase, mesh, teachers.shapes)
    place = sharding.batch_sharding(mesh)
    batch = {
        name: jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=place)
        for name, values in rows.items()
    }
    step = trainer.train_step.function
    try:
        executable = step.lower(trainer.shapes, batch, trainer.frozen).compile()
    except jax.errors.JaxRuntimeError as error:
        return StepPlan(phase, settings, _out_of_memory(error))
    program = hlo.parse(executable.as_text())
    devices = len(topology.devices)
    made = StepPlan(
        phase=phase,
        settings=settings,
        memory=_memory(executable.memory_analysis(), topology),
        model_flops=trainer.flops(rows, extent(rows)),
        flops=report.flops(step, trainer.shapes, batch, trainer.frozen) / devices,
        memory_bytes=profiling_memory.bytes_moved(program),
        collectives=tuple(find_collectives(program, sharding.shape_within_slice(mesh))),
        largest=tuple(profiling_memory.largest(program, _SHOWN)),
    )
    return dataclasses.replace(made, seconds=_seconds(made, topology))


def _out_of_memory(error: Exception) -> OutOfMemory:
    """The two sizes that the compiler names: first what is needed, then what is there."""
    text = str(error)
    sizes = [float(size) * _UNITS[unit] for size, unit in _SIZE.findall(text)]
    if "RESOURCE_EXHAUSTED" not in text or len(sizes) < 2:
        raise error
    return OutOfMemory(*sizes[:2])


def _memory(analysis: Any, topology: Topology) -> dict[str, float]:
    """Bytes when most is held; the compiler's sum of temporaries counts what takes turns twice."""
    arguments, peak = analysis.argument_size_in_bytes, analysis.peak_memory_in_bytes
    added = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    code = analysis.generated_code_size_in_bytes
    return {
        "arguments": arguments,
        "temporaries": max(0, peak - arguments - added),
        "results": added,
        "program": code,
        "all": peak + code,
        "there": topology.chip.memory_bytes / topology.chip.devices,
    }


def _seconds(step: StepPlan, topology: Topology) -> dict[str, float]:
    chip = topology.chip
    computing = step.flops / (chip.flops_per_second / chip.devices)
    moving = step.memory_bytes / (chip.memory_bytes_per_second / chip.devices)
    across = [each.bytes for each in step.collectives if each.axes == SLICES]
    within = [each.bytes for each in step.collectives if each.axes != SLICES]
    travelling = sum(within) / (_LINKS * chip.link_bytes_per_second)
    if across:
        travelling += sum(across) / (chip.network_bytes_per_second / chip.devices)
    return {
        "products": computing,
        "memory": moving,
        "collectives": travelling,
        "step": max(computing, moving) + travelling,
    }


def utilisation(step: StepPlan, topology: Topology) -> float:
    """Model FLOPs utilisation at the roofline (Chowdhery et al. 2022, appendix B)."""
    peak = topology.chips * topology.chip.flops_per_second
    return step.model_flops / step.seconds["step"] / peak
