"""Memory traffic of a compiled program between a device and its main memory.

Counted from the program itself, since the compiler's own analysis counts the body of a loop once.
"""

from collections.abc import Iterable, Iterator

from bertjax.profiling.hlo import Computation, HloArray, Instruction, Program, operands

_MOVE_NOTHING = {
    *("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "conditional"),
    *("call", "after-all", "partition-id", "replica-id", "opt-barrier", "async-start"),
    *("async-update", "async-done", "domain"),
}
_ALLOCATE = ("AllocateBuffer", "ConcatBitcast")
_TAKE_A_PART = ("dynamic-slice", "slice", "gather")
_HAND_ON = ("bitcast", "copy")
"""Within a fusion, where only those elements are made that somebody takes."""


def bytes_moved(program: Program) -> int:
    """Bytes that a step moves between one device's main memory and the device.

    What an instruction reads and writes, but of a stack of layers, or of a table, only the part
    that it takes out or puts in; what lies in faster memory is not counted.
    """
    return sum(times * moved for _, times, moved in by_instruction(program))


def by_instruction(program: Program) -> Iterator[tuple[Instruction, int, int]]:
    """Each instruction that is run by itself, how often, and the bytes that it moves each time."""
    for name, times in _in_sequence(program).items():
        computation = program.computations[name]
        for instruction in computation.values():
            yield instruction, times, _moved(instruction, computation, program)


def largest(program: Program, count: int) -> list[tuple[int, str, tuple[int, ...], str]]:
    """The largest arrays that instructions make: bytes, type, shape, and what made them."""
    best: dict[tuple, tuple[int, str, tuple[int, ...], str]] = {}
    for name in _in_sequence(program):
        for instruction in program.computations[name].values():
            if instruction.opcode in _MOVE_NOTHING:
                continue
            for array in instruction.arrays:
                if array.in_memory:
                    row = (array.bytes, array.dtype, array.dims, instruction.origin)
                    best.setdefault((array.dtype, array.dims), row)
    return sorted(best.values(), key=lambda row: -row[0])[:count]


def _in_sequence(program: Program) -> dict[str, int]:
    """The computations that are run one instruction after the other, and how often."""
    names, waiting = set(), [program.entry]
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        names.add(name)
        for instruction in program.computations[name].values():
            if instruction.opcode in ("while", "conditional", "call", "async-start"):
                waiting += [each for each in instruction.called if each in program.computations]
    return {name: program.runs[name] for name in program.computations if name in names}


def _moved(instruction: Instruction, computation: Computation, program: Program) -> int:
    if instruction.opcode in _MOVE_NOTHING or instruction.opcode.endswith("-done"):
        return 0
    if any(word in instruction.attributes for word in _ALLOCATE):
        return 0
    taken = list(operands(instruction, computation))
    if instruction.opcode == "copy-start":
        return _in_memory([instruction.arrays[0], *taken])
    if instruction.opcode == "slice-start":
        # It gives what it takes, and behind it the part, which is what is read and written.
        part = instruction.arrays[1]
        return part.bytes * (taken[0].in_memory + part.in_memory)
    if instruction.opcode in _TAKE_A_PART:
        return 2 * _in_memory(instruction.arrays)
    if instruction.opcode == "dynamic-update-slice":
        return 2 * _in_memory(taken[1:2])
    if instruction.opcode == "fusion":
        return _moved_by_fusion(instruction, taken, program)
    return _in_memory([*instruction.arrays, *taken])


def _moved_by_fusion(fusion: Instruction, taken: list[HloArray], program: Program) -> int:
    inner = _inside(fusion, program)
    read = (
        _read(parameter, array, inner, program)
        for array, parameter in zip(taken, inner.parameters, strict=False)
        if array.in_memory
    )
    written = (_written(array, inner, program) for array in fusion.arrays if array.in_memory)
    return sum(read) + sum(written)


def _inside(fusion: Instruction, program: Program) -> Computation:
    return program.computations[fusion.attribute("calls")]


def _read(held: Instruction, array: HloArray, inner: Computation, program: Program) -> int:
    """What a fusion reads of an array that it takes, which it holds as `held`."""
    parts = 0
    for user, place in inner.uses(held.name):
        if user.opcode in _TAKE_A_PART and place == 0:
            parts += user.arrays[0].bytes
        elif _hands_on(user, program) and not user.root:
            parts += _read(user, array, inner, program)
        elif user.opcode == "fusion":
            deeper = _inside(user, program)
            parts += _read(deeper.parameters[place], array, deeper, program)
        elif not (user.opcode == "dynamic-update-slice" and place == 0):
            return array.bytes
    return min(parts, array.bytes)


def _hands_on(instruction: Instruction, program: Program) -> bool:
    if instruction.opcode != "fusion":
        return instruction.opcode in _HAND_ON
    first, *others = (x for x in _inside(instruction, program).values() if x.opcode != "parameter")
    return not others and first.opcode in _HAND_ON


def _written(array: HloArray, inner: Computation, program: Program) -> int:
    """What a fusion writes of one of its results: where it updates a part in place, this part."""
    return min(_updates(array, inner, program), default=array.bytes)


def _updates(array: HloArray, inner: Computation, program: Program) -> Iterator[int]:
    for each in inner.values():
        if all(made.dims != array.dims for made in each.arrays):
            continue
        if each.opcode == "dynamic-update-slice":
            yield inner[each.operands[1]].arrays[0].bytes
        elif each.opcode == "fusion":
            yield from _updates(array, _inside(each, program), program)


def _in_memory(arrays: Iterable[HloArray]) -> int:
    return sum(array.bytes for array in arrays if array.in_memory)
