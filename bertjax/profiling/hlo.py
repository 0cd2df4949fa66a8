"""Parse the HLO text of compiled programs: computations, instructions and trip counts."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_BITS = {"pred": 8, "s4": 4, "u4": 4, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_INSTRUCTION = re.compile(r"  (?:ROOT )?%?[\w.-]+ = ")
_CALLEES = re.compile(
    r"(?:calls|body|condition|to_apply|async_execution_thread_calls|called_computations)=%?([\w.-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.-]+)")


@dataclasses.dataclass(frozen=True)
class HloArray:
    """Array of an instruction's result.

    Attributes:
      dtype: XLA's name of the type.
      dims: Shape.
      bytes: Size in bytes, without padding to tiles.
      in_memory: Whether it is in the device's main memory (HBM), not in faster memory.
    """

    dtype: str
    dims: tuple[int, ...]
    bytes: int
    in_memory: bool


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Instruction of a computation.

    Attributes:
      name: Its name.
      opcode: Its operation.
      arrays: Results.
      operands: Names of its operands, which are instructions of the same computation.
      attributes: The rest of the line.
      root: Whether its result is that of the computation.
    """

    name: str
    opcode: str
    arrays: tuple[HloArray, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @property
    def callees(self) -> list[str]:
        """Names of the computations that it calls."""
        names = _CALLEES.findall(self.attributes)
        for branches, branch in _BRANCHES.findall(self.attributes):
            names += re.findall(r"%?([\w.-]+)", branches) if branches else [branch]
        return names

    def get_computation(self, attribute: str) -> str:
        """Returns the name of the computation in an attribute; empty if there is none."""
        found = re.search(rf"\b{attribute}=%?([\w.-]+)", self.attributes)
        return found.group(1) if found else ""

    @property
    def origin(self) -> str:
        """JAX's name of the operation that it was compiled from; empty if unknown."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found.group(1) if found else ""


class Computation(dict[str, Instruction]):
    """Instructions of a computation by name, in order."""

    @functools.cached_property
    def parameters(self) -> list[Instruction]:
        """Parameters of the computation, in order."""
        found = [each for each in self.values() if each.opcode == "parameter"]
        return sorted(found, key=lambda each: int(re.match(r"\d+", each.attributes).group()))

    def uses(self, name: str) -> list[tuple[Instruction, int]]:
        """Returns the users of an instruction, each with the index of the operand."""
        return self._uses.get(name, [])

    @functools.cached_property
    def _uses(self) -> dict[str, list[tuple[Instruction, int]]]:
        uses: dict[str, list[tuple[Instruction, int]]] = {}
        for each in self.values():
            for index, operand in enumerate(each.operands):
                uses.setdefault(operand, []).append((each, index))
        return uses


@dataclasses.dataclass(frozen=True)
class Program:
    """Compiled program.

    Attributes:
      computations: Computations by name.
      entry: Name of the entry computation.
    """

    computations: Mapping[str, Computation]
    entry: str

    @functools.cached_property
    def runs(self) -> Mapping[str, int]:
        """Number of executions of each computation; of a loop's body, times its trip count."""
        counts: dict[str, int] = {}

        def visit(name: str, times: int) -> None:
            counts[name] = counts.get(name, 0) + times
            for instruction in self.computations[name].values():
                inner = times * (
                    self._trip_count(instruction) if instruction.opcode == "while" else 1
                )
                for callee in instruction.callees:
                    if callee in self.computations:
                        visit(callee, inner)

        visit(self.entry, 1)
        return counts

    def _trip_count(self, loop: Instruction) -> int:
        """Returns the trip count of a loop: the only constant of its condition, or 1 if unknown."""
        if known := _TRIPS.search(loop.attributes):
            return int(known.group(1))
        constants = set(self._constants(loop.get_computation("condition")))
        return constants.pop() if len(constants) == 1 else 1

    def _constants(self, name: str) -> Iterator[int]:
        for instruction in self.computations.get(name, {}).values():
            if instruction.opcode == "constant" and instruction.arrays[0].dtype in ("s32", "u32"):
                yield int(instruction.operands[0])
            for callee in instruction.callees:
                yield from self._constants(callee)


def get_operands(instruction: Instruction, computation: Computation) -> Iterator[HloArray]:
    """Yields the operands of an instruction; the first array of operands with several."""
    for name in instruction.operands:
        if name in computation:
            yield from computation[name].arrays[:1]


def parse(text: str) -> Program:
    """Parses the text of `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in _whole_lines(text):
        if line.endswith("{") and not line.startswith(" ") and "->" in line:
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            current = computations[name] = Computation()
            entry = name if line.startswith("ENTRY ") else entry
        elif _ends(line):
            current = None
        elif current is not None and " = " in line:
            instruction = _parse_instruction(line)
            current[instruction.name] = instruction
    return Program(computations, entry)


def _whole_lines(text: str) -> Iterator[str]:
    """Yields lines, joining those of an instruction: the metadata of Pallas kernels has several."""
    parts: list[str] = []
    in_computation = False
    for line in text.splitlines():
        starts = not in_computation or _ends(line) or _INSTRUCTION.match(line)
        if starts and parts:
            yield "".join(parts)
            parts = []
        parts.append(line)
        in_computation = not _ends(line) and (in_computation or line.endswith("{"))
    yield "".join(parts)


def _ends(line: str) -> bool:
    """Whether a line ends a computation, of the main core or of another one."""
    return line == "}" or line.startswith("}, execution_thread=")


def _parse_instruction(line: str) -> Instruction:
    left, _, right = line.strip().partition(" = ")
    end = _find_closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    start = len(opcode)
    close = _find_closing(rest, start)
    inside = rest[start + 1 : close]
    if opcode == "constant":
        operands = (inside,)
    elif opcode == "parameter":
        operands = ()
    else:
        operands = tuple(re.findall(r"%([\w.-]+)", inside))
    return Instruction(
        name=left.removeprefix("ROOT ").lstrip("%"),
        opcode=opcode,
        arrays=tuple(_parse_array(*found) for found in _ARRAY.findall(shape)),
        operands=operands,
        attributes=rest[close + 1 :] if opcode != "parameter" else inside,
        root=left.startswith("ROOT "),
    )


def _find_closing(text: str, start: int) -> int:
    """Returns the index of the parenthesis that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise ValueError(f"no closing parenthesis: {text[:80]}")


def _parse_array(dtype: str, dims: str, layout: str) -> HloArray:
    sizes = tuple(int(size.lstrip("<=")) for size in dims.split(",") if size)
    digits = re.search(r"\d+", dtype)
    bits = _BITS.get(dtype, int(digits.group()) if digits else 32)
    memory_space = re.search(r"S\((\d+)\)", layout or "")
    in_memory = memory_space is None or memory_space.group(1) == "0"
    return HloArray(dtype, sizes, math.prod(sizes) * bits // 8, in_memory)
