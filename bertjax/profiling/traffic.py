"""Count the bytes that a compiled program moves in a step: in main memory, and between devices.

Counted from the HLO, since the compiler's cost analysis counts the body of a loop only once.
"""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from bertjax.profiling.hlo import Computation, HloArray, Instruction, Program, get_operands

_WITHOUT_MEMORY_TRAFFIC = {
    *("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "conditional"),
    *("call", "after-all", "partition-id", "replica-id", "opt-barrier", "async-start"),
    *("async-update", "async-done", "domain"),
}
_ALLOCATE = ("AllocateBuffer", "ConcatBitcast")
_SLICE_OPCODES = ("dynamic-slice", "slice", "gather")
_PASS_THROUGH = ("bitcast", "copy")
"""Within a fusion, which computes only the elements that are used."""

OTHER = "other"
"""Groups of devices that do not match an axis of the mesh, nor a combination of axes."""

SLICES = "slices"
"""The network between slices of a pod."""

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((?:(\[[^)]*\)?)|([\d,]+))\))?\s*\{([^}]*)\}"
)
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_SLICES = re.compile(r'_xla_megascale_target="\{([\d,:]*)\}')


def count_bytes_moved(program: Program) -> int:
    """Counts the bytes that a step moves between a device and its main memory.

    Slices of an array, such as one layer of a stack or rows of a table, count with the size of the
    slice. Arrays in faster memory are not counted.
    """
    return sum(times * moved for _, times, moved in traffic_by_instruction(program))


def traffic_by_instruction(program: Program) -> Iterator[tuple[Instruction, int, int]]:
    """Yields scheduled instructions with their executions per step and bytes per execution."""
    for name, times in _scheduled_computations(program).items():
        computation = program.computations[name]
        for instruction in computation.values():
            yield instruction, times, _count_bytes(instruction, computation, program)


def find_largest_arrays(
    program: Program, count: int
) -> list[tuple[int, str, tuple[int, ...], str]]:
    """Finds the largest arrays: bytes, type, shape, and the operation that computes them."""
    best: dict[tuple, tuple[int, str, tuple[int, ...], str]] = {}
    for name in _scheduled_computations(program):
        for instruction in program.computations[name].values():
            if instruction.opcode in _WITHOUT_MEMORY_TRAFFIC:
                continue
            for array in instruction.arrays:
                if array.in_memory:
                    row = (array.bytes, array.dtype, array.dims, instruction.origin)
                    best.setdefault((array.dtype, array.dims), row)
    return sorted(best.values(), key=lambda row: -row[0])[:count]


def _scheduled_computations(program: Program) -> dict[str, int]:
    """Returns the computations outside of fusions, with their executions per step."""
    names, pending = set(), [program.entry]
    while pending:
        name = pending.pop()
        if name in names:
            continue
        names.add(name)
        for instruction in program.computations[name].values():
            if instruction.opcode in ("while", "conditional", "call", "async-start"):
                pending += [each for each in instruction.callees if each in program.computations]
    return {name: program.runs[name] for name in program.computations if name in names}


def _count_bytes(instruction: Instruction, computation: Computation, program: Program) -> int:
    if instruction.opcode in _WITHOUT_MEMORY_TRAFFIC or instruction.opcode.endswith("-done"):
        return 0
    if any(word in instruction.attributes for word in _ALLOCATE):
        return 0
    inputs = list(get_operands(instruction, computation))
    if instruction.opcode == "copy-start":
        return _bytes_in_memory([instruction.arrays[0], *inputs])
    if instruction.opcode == "slice-start":
        # Its results are the operand and the slice, and only the slice is read and written.
        part = instruction.arrays[1]
        return part.bytes * (inputs[0].in_memory + part.in_memory)
    if instruction.opcode in _SLICE_OPCODES:
        return 2 * _bytes_in_memory(instruction.arrays)
    if instruction.opcode == "dynamic-update-slice":
        return 2 * _bytes_in_memory(inputs[1:2])
    if instruction.opcode == "fusion":
        return _count_fusion_bytes(instruction, inputs, program)
    return _bytes_in_memory([*instruction.arrays, *inputs])


def _count_fusion_bytes(fusion: Instruction, inputs: list[HloArray], program: Program) -> int:
    inner = _fused_computation(fusion, program)
    reads = (
        _bytes_read(parameter, array, inner, program)
        for array, parameter in zip(inputs, inner.parameters, strict=False)
        if array.in_memory
    )
    writes = (_bytes_written(array, inner, program) for array in fusion.arrays if array.in_memory)
    return sum(reads) + sum(writes)


def _fused_computation(fusion: Instruction, program: Program) -> Computation:
    return program.computations[fusion.get_computation("calls")]


def _bytes_read(value: Instruction, array: HloArray, inner: Computation, program: Program) -> int:
    """Counts the bytes that a fusion reads of an operand `array`, which is `value` in its body."""
    sliced = 0
    for user, index in inner.uses(value.name):
        if user.opcode in _SLICE_OPCODES and index == 0:
            sliced += user.arrays[0].bytes
        elif _is_pass_through(user, program) and not user.root:
            sliced += _bytes_read(user, array, inner, program)
        elif user.opcode == "fusion":
            nested = _fused_computation(user, program)
            sliced += _bytes_read(nested.parameters[index], array, nested, program)
        elif not (user.opcode == "dynamic-update-slice" and index == 0):
            return array.bytes
    return min(sliced, array.bytes)


def _is_pass_through(instruction: Instruction, program: Program) -> bool:
    if instruction.opcode != "fusion":
        return instruction.opcode in _PASS_THROUGH
    body = _fused_computation(instruction, program).values()
    first, *others = (each for each in body if each.opcode != "parameter")
    return not others and first.opcode in _PASS_THROUGH


def _bytes_written(array: HloArray, inner: Computation, program: Program) -> int:
    """Counts the bytes that a fusion writes of a result: of an in-place update, only the slice."""
    return min(_update_sizes(array, inner, program), default=array.bytes)


def _update_sizes(array: HloArray, inner: Computation, program: Program) -> Iterator[int]:
    for each in inner.values():
        if all(result.dims != array.dims for result in each.arrays):
            continue
        if each.opcode == "dynamic-update-slice":
            yield inner[each.operands[1]].arrays[0].bytes
        elif each.opcode == "fusion":
            yield from _update_sizes(array, _fused_computation(each, program), program)


def _bytes_in_memory(arrays: Iterable[HloArray]) -> int:
    return sum(array.bytes for array in arrays if array.in_memory)


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collective operation of a step.

    Attributes:
      kind: XLA's name, such as all-reduce.
      axes: Its mesh axes, joined by "+".
      devices: Number of devices per group.
      times: Number of executions per step.
      bytes: Bytes that each device sends per step, by the ring algorithm.
    """

    kind: str
    axes: str
    devices: int
    times: int
    bytes: float


def find_collectives(program: Program, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """Finds all collectives of more than one device, the largest first.

    A collective that the compiler decomposes, to overlap it with computation, has the same channel
    in several computations, and counts once. Explicit collectives share a channel within one
    computation, and each counts.

    Args:
      program: The compiled program; for several slices, its device ids are those of one slice.
      mesh_shape: Sizes of the mesh axes within one slice.
    """
    axes = _group_axes(mesh_shape)
    found: dict[str, Collective] = {}
    for name, times in program.runs.items():
        channel_counts = collections.Counter()
        for instruction in program.computations[name].values():
            kind = instruction.opcode.removesuffix("-start")
            if kind == "send" and _BETWEEN_SLICES.search(instruction.attributes):
                collective = _between_slices(instruction, program.computations[name], times)
                found[f"{name}/{instruction.name}"] = collective
            if kind not in _KINDS:
                continue
            groups = _groups(instruction.attributes, math.prod(mesh_shape.values()))
            size = len(groups[0]) if groups else 1
            if kind != "collective-permute" and size < 2:
                continue
            sent = times * _bytes_sent(kind, instruction, program.computations[name], size)
            axis = axes.get(frozenset(map(frozenset, groups)), OTHER)
            collective = Collective(kind, axis, size, times, sent)
            channel = re.search(r"channel_id=(\d+)", instruction.attributes)
            key = f"{name}/{instruction.name}"
            if channel:
                key = f"{channel.group(1)}/{channel_counts[channel.group(1)]}"
                channel_counts[channel.group(1)] += 1
            if key not in found or found[key].bytes < sent:
                found[key] = collective
    return sorted(found.values(), key=lambda each: -each.bytes)


def _between_slices(instruction: Instruction, computation: Computation, times: int) -> Collective:
    """Returns a collective between slices: a transfer to the host with the whole operand.

    Its attributes name the participating slices, as in {1,2} or {1:4}.
    """
    kind = _BETWEEN_SLICES.search(instruction.attributes).group(1).lower().replace("_", "-")
    kind = kind if kind in _KINDS else "collective-permute"
    slices = 0
    for part in _SLICES.search(instruction.attributes).group(1).split(","):
        first, _, last = part.partition(":")
        slices += int(last or first) - int(first) + 1
    sent = times * _bytes_sent(kind, instruction, computation, slices)
    return Collective(kind, SLICES, slices, times, sent)


def _bytes_sent(kind: str, instruction: Instruction, computation: Computation, size: int) -> float:
    """Returns the bytes that a device sends per execution (ring algorithms; Thakur et al. 2005)."""
    size_in_bytes = sum(array.bytes for array in get_operands(instruction, computation))
    share = (size - 1) / max(size, 1)
    if kind == "all-reduce":
        return 2 * share * size_in_bytes
    if kind == "all-gather":
        return (size - 1) * size_in_bytes
    if kind == "collective-permute":
        return float(size_in_bytes)
    return share * size_in_bytes


def _group_axes(mesh_shape: Mapping[str, int]) -> dict[frozenset, str]:
    """Returns the mesh axes of each set of device groups."""
    names = [name for name, size in mesh_shape.items() if size > 1]
    ids = np.arange(math.prod(mesh_shape.values())).reshape([mesh_shape[n] for n in names])
    table = {}
    for count in range(1, len(names) + 1):
        for axes in itertools.combinations(range(len(names)), count):
            last = np.moveaxis(ids, axes, range(-count, 0))
            rows = last.reshape(-1, math.prod(ids.shape[axis] for axis in axes))
            groups = frozenset(frozenset(row.tolist()) for row in rows)
            table.setdefault(groups, "+".join(names[axis] for axis in axes))
    return table


def _groups(attributes: str, devices: int) -> list[list[int]]:
    """Parses the device groups of a collective, in any of XLA's notations."""
    if found := _MESH_GROUPS.search(attributes):
        mesh, order, explicit, group_axes = found.groups()
        sizes = [int(size) for size in re.findall(r"=(\d+)", mesh)]
        names = re.findall(r"'([^']*)'=", mesh)
        axes = [names.index(name) for name in re.findall(r"'([^']*)'", group_axes)]
        ids = np.arange(devices)
        if order:
            ids = _transpose_ids(*re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", order).groups())
        elif explicit:
            ids = np.array(_parse_ints(explicit))
        moved = np.moveaxis(ids.reshape(sizes), axes, range(-len(axes), 0))
        return moved.reshape(-1, math.prod(sizes[axis] for axis in axes)).tolist()
    pattern = r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
    if found := re.search(pattern, attributes):
        shape, source, order = found.groups()
        return _transpose_ids(source, order).reshape(_parse_ints(shape)).tolist()
    if found := re.search(r"replica_groups=\{((?:\{[\d,]*\},?)+)\}", attributes):
        inner = re.findall(r"\{([\d,]*)\}", found.group(1))
        return [_parse_ints(group) for group in inner]
    return [list(range(devices))]


def _transpose_ids(shape: str, order: str | None) -> np.ndarray:
    """Returns 0, 1, 2 ... after a reshape to `shape` and a transposition, flattened."""
    sizes = _parse_ints(shape)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return (ids.transpose(_parse_ints(order)) if order else ids).reshape(-1)


def _parse_ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
