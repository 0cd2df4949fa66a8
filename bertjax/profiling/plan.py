"""Plan a run ahead of time, without TPU hardware: compile its step, estimate memory and time.

Times are a roofline (Williams et al. 2009), a lower bound: matmuls at peak FLOP/s, memory traffic
at full bandwidth, and collectives, without overlap, on the two links of one dimension of the torus
or on a chip's share of the network between slices.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from bertjax import build
from bertjax.config import replace_fields
from bertjax.errors import UserError, nearest
from bertjax.interfaces import extent
from bertjax.layers.dense import get_precision
from bertjax.profiling import dummy, hlo, traffic
from bertjax.profiling.traffic import SLICES, Collective, find_collectives
from bertjax.runs import teachers
from bertjax.runtime.chips import Topology, check_8bit
from bertjax.train import report, sharding

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\b(\d[\d.]*)([KMGT])\b")
_LINKS = 2
_NUM_LARGEST = 5
SECONDS_PER_DAY = 86_400

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """Memory of a step that exceeds that of a device, as reported by the compiler.

    Attributes:
      needed: Required bytes, at least those of temporaries.
      capacity: Bytes of a device.
    """

    needed: float
    capacity: float


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """Compiled step of a phase on a topology; quantities are per device unless specified otherwise.

    Attributes:
      phase: Shape and number of steps.
      settings: Mesh axes, remat policy and microbatches.
      memory: Bytes by kind, `all` in total and `capacity` of a device; or an `OutOfMemory`.
      model_flops: FLOPs of all devices, without rematerialisation.
      flops: FLOPs of a device, with rematerialisation.
      flops_8bit: The part of `flops` in matmuls with 8-bit operands.
      quantized: Type of these operands, as in `Precision`.
      memory_bytes: Traffic between a device and its main memory.
      collectives: Collectives, the largest first.
      largest: The largest arrays: bytes, type, shape, and the operation that computes them.
      seconds: Seconds of the roofline for `matmuls`, `memory`, `collectives`, and the whole `step`.
    """

    phase: build.Phase
    settings: Mapping[str, Any]
    memory: Mapping[str, float] | OutOfMemory
    model_flops: float = 0.0
    flops: float = 0.0
    flops_8bit: float = 0.0
    quantized: str = ""
    memory_bytes: float = 0.0
    collectives: tuple[Collective, ...] = ()
    largest: tuple = ()
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the step fits in the memory of a device."""
        return not isinstance(self.memory, OutOfMemory)


def resolve_for_tpu(config: ConfigDict) -> ConfigDict:
    """Returns the config with device-dependent settings (auto) resolved as on a TPU."""
    changes, model = {}, build.model_values(config.model)
    if model.get("precision") == "auto":
        changes["model.precision"] = "bfloat16"
    if model.get("unroll") == 0:
        changes["model.unroll"] = 1
    return replace_fields(config, changes)


def with_mesh(config: ConfigDict, text: str) -> ConfigDict:
    """Returns the config with a mesh such as "data=64,fsdp=4"; other axes are 1.

    Raises:
      UserError: `text` has an unknown axis or an invalid size.
    """
    sizes = dict.fromkeys(sharding.MESH_AXES, 1)
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in sizes:
            hint = nearest(axis, sharding.MESH_AXES)
            raise UserError(f"--mesh: unknown axis {axis!r}: got {text}, {hint}")
        if not re.fullmatch(r"-1|[1-9]\d*", size):
            raise UserError(f"--mesh: got {text}, expected axes and sizes such as data=64,fsdp=4")
        sizes[axis] = int(size)
    return replace_fields(config, {f"mesh.{axis}": size for axis, size in sizes.items()})


def plan_step(config: ConfigDict, phase: build.Phase, topology: Topology, log: Log) -> StepPlan:
    """Compiles the training step of a phase, and estimates its memory and time.

    Args:
      config: Config of pretraining.
      phase: Defines the shape of batches.
      topology: Devices to compile for.
      log: Receives a line before compilation.

    Raises:
      UserError: the mesh does not divide the devices, the batch does not divide over the mesh, or
        the chip does not have the precision.
    """
    quantized = get_precision(build.precision(config.model)).quantized
    check_8bit(quantized, topology.chip.kinds[0])
    mesh = build.mesh_on(config, topology.devices, [phase])
    settings = {axis: size for axis, size in mesh.shape.items() if size > 1}
    remat = build.model_values(config.model).get("remat", "none")
    settings |= {"remat": remat, "microbatches": phase.microbatches}
    shown = ", ".join(f"{name} {value}" for name, value in settings.items())
    log(f"compiling {phase.batch_size} x {phase.max_seq_length} for {topology.title}: {shown}")
    trainer, host_batch = dummy.build_trainer(config, phase, mesh, teachers.shapes)
    batch_sharding = sharding.batch_sharding(mesh)
    batch = {
        name: jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=batch_sharding)
        for name, values in host_batch.items()
    }
    step, arguments = trainer.train_step.function, (trainer.shapes, batch, trainer.frozen)
    try:
        executable = step.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        return StepPlan(phase, settings, _parse_out_of_memory(error))
    program = hlo.parse(executable.as_text())
    devices = len(topology.devices)
    plan = StepPlan(
        phase=phase,
        settings=settings,
        memory=_memory_by_kind(executable.memory_analysis(), topology),
        model_flops=trainer.flops(host_batch, extent(host_batch)),
        flops=report.flops(step, *arguments) / devices,
        flops_8bit=report.flops(step, *arguments, operand_bytes=1) / devices,
        quantized=quantized,
        memory_bytes=traffic.count_bytes_moved(program),
        collectives=tuple(find_collectives(program, sharding.shape_within_slice(mesh))),
        largest=tuple(traffic.find_largest_arrays(program, _NUM_LARGEST)),
    )
    return dataclasses.replace(plan, seconds=_roofline(plan, topology))


def _parse_out_of_memory(error: Exception) -> OutOfMemory:
    """Parses the sizes in the compiler's error: the required bytes, then those of a device."""
    text = str(error)
    sizes = [float(size) * _UNITS[unit] for size, unit in _SIZE.findall(text)]
    if "RESOURCE_EXHAUSTED" not in text or len(sizes) < 2:
        raise error
    return OutOfMemory(*sizes[:2])


def _memory_by_kind(analysis: Any, topology: Topology) -> dict[str, float]:
    """Returns peak bytes by kind.

    Temporaries follow from the peak, since the compiler's own sum of temporaries includes buffers
    that share memory.
    """
    arguments, peak = analysis.argument_size_in_bytes, analysis.peak_memory_in_bytes
    added = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    code = analysis.generated_code_size_in_bytes
    return {
        "arguments": arguments,
        "temporaries": max(0, peak - arguments - added),
        "results": added,
        "program": code,
        "all": peak + code,
        "capacity": topology.chip.memory_bytes / topology.chip.devices,
    }


def _roofline(step: StepPlan, topology: Topology) -> dict[str, float]:
    chip = topology.chip
    matmuls = (step.flops - step.flops_8bit) / (chip.flops_per_second / chip.devices)
    if step.flops_8bit:
        matmuls += step.flops_8bit / (chip.peaks_8bit[step.quantized] / chip.devices)
    memory = step.memory_bytes / (chip.memory_bytes_per_second / chip.devices)
    across = [each.bytes for each in step.collectives if each.axes == SLICES]
    within = [each.bytes for each in step.collectives if each.axes != SLICES]
    collectives = sum(within) / (_LINKS * chip.link_bytes_per_second)
    if across:
        collectives += sum(across) / (chip.network_bytes_per_second / chip.devices)
    return {
        "matmuls": matmuls,
        "memory": memory,
        "collectives": collectives,
        "step": max(matmuls, memory) + collectives,
    }


def compute_mfu(step: StepPlan, topology: Topology) -> float:
    """Computes model FLOPs utilisation at the roofline (Chowdhery et al. 2022, appendix B)."""
    peak = topology.chips * topology.chip.flops_per_second
    return step.model_flops / step.seconds["step"] / peak
