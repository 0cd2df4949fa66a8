"""Count the memory traffic of a compiled program between a device and its main memory (HBM).

Counted from the HLO, since the compiler's cost analysis counts the body of a loop only once.
"""

from collections.abc import Iterable, Iterator

from bertjax.profiling.hlo import Computation, HloArray, Instruction, Program, get_operands

_WITHOUT_MEMORY_TRAFFIC = {
    *("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "conditional"),
    *("call", "after-all", "partition-id", "replica-id", "opt-barrier", "async-start"),
    *("async-update", "async-done", "domain"),
}
_ALLOCATE = ("AllocateBuffer", "ConcatBitcast")
_SLICES = ("dynamic-slice", "slice", "gather")
_PASS_THROUGH = ("bitcast", "copy")
"""Within a fusion, which computes only the elements that are used."""


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
    if instruction.opcode in _SLICES:
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
        if user.opcode in _SLICES and index == 0:
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
