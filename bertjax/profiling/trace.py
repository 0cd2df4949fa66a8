"""Profile training steps: the share of attention, matmuls, dropout and optimizer in their time.

JAX's profiler records when each HLO instruction ran; the metadata of the compiled program name the
operation of the model that it was compiled from.
"""

import functools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import jax

from bertjax.errors import UserError
from bertjax.profiling import hlo
from bertjax.train.step import OPTIMIZER_SCOPE

KINDS = ("attention", "matmul", "dropout", "loss", "optimizer", "collective", "other")
"""Kinds of operations: `attention` is that between the projections, `matmul` all other products,
`loss` all other operations of objectives, such as the softmax over the vocabulary."""
IDLE = "idle"
"""The share of time in which a device is idle, waiting for the host or for other devices."""

_COLLECTIVES = (
    *("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute"),
    *("collective-broadcast", "ragged-all-to-all"),
)
_CONTAINERS = ("while", "conditional", "call")
"""Instructions whose time is that of the instructions in them."""
_ATTENTION = re.compile(r"/attention/(?!.*\b(query|key|value|output|query_key_value)/)")
_KERNELS = re.compile(r"splash|flash|fmha|cudnn.*attention|attention_kernel", re.IGNORECASE)
_PRODUCTS = re.compile(r'custom_call_target="[^"]*(gemm|matmul|dot|conv)', re.IGNORECASE)
_LOSS = re.compile(r"\.loss/")
_DROPOUT = re.compile(r"dropout|threefry|random_bits|bits16", re.IGNORECASE)


class Interval(NamedTuple):
    """The start and end of an operation, in nanoseconds, and its kind."""

    start: float
    end: float
    kind: str


def measure(steps: Callable[[], object], folder: pathlib.Path, text: str) -> dict[str, float]:
    """Traces steps of a compiled program.

    Args:
      steps: Runs the steps and waits for their end.
      folder: Existing folder for the trace, which TensorBoard and Perfetto open.
      text: The text of the program, of `compiled.as_text()`.

    Returns:
      The share of each of `KINDS` and of `IDLE` in the time, as a mean over devices.

    Raises:
      UserError: the profiler recorded no operation.
    """
    before = set(_files(folder))
    with jax.profiler.trace(str(folder)):
        steps()
    program = hlo.parse(text)
    module = re.search(r"HloModule ([\w.-]+)", text).group(1)
    devices = read(sorted(set(_files(folder)) - before), program, module)
    if not devices:
        raise UserError(
            f"--profile {folder}: the profiler recorded no operation of {module}; look at the "
            "trace with TensorBoard"
        )
    each = [shares(intervals) for intervals in devices]
    return {kind: sum(own[kind] for own in each) / len(each) for kind in (*KINDS, IDLE)}


def _files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    return folder.rglob("*.xplane.pb")


def read(paths: Iterable[pathlib.Path], program: hlo.Program, module: str) -> list[list[Interval]]:
    """Reads the operations of a program from traces: those of each device."""
    kinds = kinds_of(program)
    found: dict[tuple[str, int], list[Interval]] = {}
    for path in paths:
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    stats = dict(event.stats)
                    name = stats.get("hlo_op", event.name)
                    if stats.get("hlo_module", module) == module and name in kinds:
                        device = plane.name, stats.get("device_ordinal", 0)
                        own = Interval(event.start_ns, event.end_ns, kinds[name])
                        found.setdefault(device, []).append(own)
    return [*found.values()]


def shares(intervals: Iterable[Interval]) -> dict[str, float]:
    """Shares the time from the first start to the last end.

    Operations that run at the same time share it in proportion to their durations.
    """
    ordered = sorted(intervals)
    busy, end = 0.0, ordered[0].start
    seconds = dict.fromkeys(KINDS, 0.0)
    for each in ordered:
        busy += max(each.end - max(each.start, end), 0.0)
        end = max(end, each.end)
        seconds[each.kind] += each.end - each.start
    whole, total = end - ordered[0].start, sum(seconds.values())
    busy_share = busy / whole if whole else 1.0
    found = {kind: busy_share * own / total if total else 0.0 for kind, own in seconds.items()}
    return found | {IDLE: 1 - busy_share}


def kinds_of(program: hlo.Program) -> Mapping[str, str]:
    """Maps the instructions that take time to their kinds."""
    is_fused = {
        callee
        for computation in program.computations.values()
        for instruction in computation.values()
        if instruction.opcode not in _CONTAINERS
        for callee in instruction.callees
    }
    return {
        name: _kind(instruction, program)
        for own, computation in program.computations.items()
        if own not in is_fused
        for name, instruction in computation.items()
        if instruction.opcode not in (*_CONTAINERS, "parameter", "constant", "tuple")
    }


def _kind(instruction: hlo.Instruction, program: hlo.Program) -> str:
    inside = [instruction, *_fused(instruction, program)]
    if instruction.opcode.startswith(_COLLECTIVES):
        return "collective"
    products = [each for each in inside if _is_product(each)]
    origins = [each.origin for each in products or [instruction]]
    if any(f"/{OPTIMIZER_SCOPE}/" in origin for origin in origins):
        return "optimizer"
    if not products and any(_DROPOUT.search(origin) for origin in origins):
        return "dropout"
    if any(_ATTENTION.search(origin) for origin in origins) or _KERNELS.search(
        instruction.attributes
    ):
        return "attention"
    if products:
        return "matmul"
    return "loss" if any(_LOSS.search(origin) for origin in origins) else "other"


def _fused(instruction: hlo.Instruction, program: hlo.Program) -> Iterator[hlo.Instruction]:
    if instruction.opcode in _CONTAINERS:
        return
    for callee in instruction.callees:
        for each in program.computations.get(callee, {}).values():
            yield each
            yield from _fused(each, program)


@functools.cache
def _is_product(instruction: hlo.Instruction) -> bool:
    is_call = instruction.opcode == "custom-call"
    return instruction.opcode in ("dot", "convolution") or (
        is_call and _PRODUCTS.search(instruction.attributes) is not None
    )
