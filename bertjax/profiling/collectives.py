"""Collectives of a compiled program: the bytes that devices exchange in a step.

Counted from the program itself, since the compiler's own analysis counts the body of a loop once.
"""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Mapping

import numpy as np

from bertjax.profiling.hlo import Computation, Instruction, Program, operands

OTHER = "other"
"""Stands for groups of devices that no axis of the mesh, or several of them together, makes."""

SLICES = "slices"
"""Stands for the network between slices of a pod."""

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((?:(\[[^)]*\)?)|([\d,]+))\))?\s*\{([^}]*)\}"
)
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_SLICES = re.compile(r'_xla_megascale_target="\{([\d,:]*)\}')


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation of a step.

    Attributes:
      kind: As XLA names it.
      axes: The mesh axes that it runs along, joined by "+".
      devices: In a group.
      times: It runs in a step.
      bytes: That one device sends in a step, by the ring algorithm.
    """

    kind: str
    axes: str
    devices: int
    times: int
    bytes: float


def find_collectives(program: Program, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """All collectives of more than one device, the largest first.

    A collective that the compiler has taken apart, to hide it behind other work, counts once: it
    has one channel in several computations. Those asked for by hand share a channel in one.

    Args:
      program: Of several slices, it speaks of the devices of one.
      mesh_shape: The sizes of axes, within one slice.
    """
    axes = _axes_of_groups(mesh_shape)
    found: dict[str, Collective] = {}
    for name, times in program.runs.items():
        seen = collections.Counter()
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
            sent = times * _sent(kind, instruction, program.computations[name], size)
            axis = axes.get(frozenset(map(frozenset, groups)), OTHER)
            collective = Collective(kind, axis, size, times, sent)
            channel = re.search(r"channel_id=(\d+)", instruction.attributes)
            key = f"{name}/{instruction.name}"
            if channel:
                key = f"{channel.group(1)}/{seen[channel.group(1)]}"
                seen[channel.group(1)] += 1
            if key not in found or found[key].bytes < sent:
                found[key] = collective
    return sorted(found.values(), key=lambda each: -each.bytes)


def _between_slices(instruction: Instruction, computation: Computation, times: int) -> Collective:
    """What a device sends to other slices: it hands it to its host, as the whole of an operation.

    It names the slices that take part, as in {1,2} or {1:4}.
    """
    kind = _BETWEEN_SLICES.search(instruction.attributes).group(1).lower().replace("_", "-")
    kind = kind if kind in _KINDS else "collective-permute"
    slices = 0
    for part in _SLICES.search(instruction.attributes).group(1).split(","):
        first, _, last = part.partition(":")
        slices += int(last or first) - int(first) + 1
    return Collective(
        kind, SLICES, slices, times, times * _sent(kind, instruction, computation, slices)
    )


def _sent(kind: str, instruction: Instruction, computation: Computation, size: int) -> float:
    """Bytes that one device sends once (Thakur et al. 2005, table of ring algorithms)."""
    taken = sum(array.bytes for array in operands(instruction, computation))
    share = (size - 1) / max(size, 1)
    if kind == "all-reduce":
        return 2 * share * taken
    if kind == "all-gather":
        return (size - 1) * taken
    if kind == "collective-permute":
        return float(taken)
    return share * taken


def _axes_of_groups(mesh_shape: Mapping[str, int]) -> dict[frozenset, str]:
    """Which groups of devices, by number, lie along each axis and each set of axes."""
    names = [name for name, size in mesh_shape.items() if size > 1]
    numbers = np.arange(math.prod(mesh_shape.values())).reshape([mesh_shape[n] for n in names])
    table = {}
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), count):
            last = np.moveaxis(numbers, chosen, range(-count, 0))
            rows = last.reshape(-1, math.prod(numbers.shape[axis] for axis in chosen))
            groups = frozenset(frozenset(row.tolist()) for row in rows)
            table.setdefault(groups, "+".join(names[axis] for axis in chosen))
    return table


def _groups(attributes: str, devices: int) -> list[list[int]]:
    """The groups of a collective, in any of the ways in which XLA writes them."""
    if found := _MESH_GROUPS.search(attributes):
        mesh, order, explicit, chosen = found.groups()
        sizes = [int(size) for size in re.findall(r"=(\d+)", mesh)]
        names = re.findall(r"'([^']*)'=", mesh)
        axes = [names.index(name) for name in re.findall(r"'([^']*)'", chosen)]
        numbers = np.arange(devices)
        if order:
            numbers = _transposed(*re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", order).groups())
        elif explicit:
            numbers = np.array(_numbers(explicit))
        moved = np.moveaxis(numbers.reshape(sizes), axes, range(-len(axes), 0))
        return moved.reshape(-1, math.prod(sizes[axis] for axis in axes)).tolist()
    pattern = r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
    if found := re.search(pattern, attributes):
        shape, source, order = found.groups()
        return _transposed(source, order).reshape(_numbers(shape)).tolist()
    if found := re.search(r"replica_groups=\{((?:\{[\d,]*\},?)+)\}", attributes):
        inner = re.findall(r"\{([\d,]*)\}", found.group(1))
        return [_numbers(group) for group in inner]
    return [list(range(devices))]


def _transposed(shape: str, order: str | None) -> np.ndarray:
    """0, 1, 2 ... in a shape, with its axes in another order, flat again."""
    sizes = _numbers(shape)
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return (numbers.transpose(_numbers(order)) if order else numbers).reshape(-1)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
