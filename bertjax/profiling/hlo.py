"""Parse the HLO text of compiled programs: computations, instructions, trip counts."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_BITS = {"pred": 8, "s4": 4, "u4": 4, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(
    r"(?:calls|body|condition|to_apply|async_execution_thread_calls|called_computations)=%?([\w.-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.-]+)")


@dataclasses.dataclass(frozen=True)
class HloArray:
    """One array of an instruction's result.

    Attributes:
      dtype: As XLA names it.
      dims: Its shape.
      bytes: Its size, without padding to tiles.
      in_memory: Whether it lies in the device's main memory, and not in a faster one.
    """

    dtype: str
    dims: tuple[int, ...]
    bytes: int
    in_memory: bool


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: Its own.
      opcode: What it does.
      arrays: What it gives.
      operands: Names of what it takes, in the same computation.
      attributes: The rest of the line.
      root: Whether it gives what the computation gives.
    """

    name: str
    opcode: str
    arrays: tuple[HloArray, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @property
    def called(self) -> list[str]:
        """Names of the computations that it runs."""
        names = _CALLED.findall(self.attributes)
        for several, one in _BRANCHES.findall(self.attributes):
            names += re.findall(r"%?([\w.-]+)", several) if several else [one]
        return names

    def attribute(self, name: str) -> str:
        """The computation that an attribute names."""
        found = re.search(rf"\b{name}=%?([\w.-]+)", self.attributes)
        return found.group(1) if found else ""

    @property
    def origin(self) -> str:
        """Which operation of the model it was made of."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found.group(1) if found else ""


class Computation(dict[str, Instruction]):
    """Instructions by name, in order."""

    @functools.cached_property
    def parameters(self) -> list[Instruction]:
        """Those that stand for what it is given, in the order of what it is given."""
        found = [each for each in self.values() if each.opcode == "parameter"]
        return sorted(found, key=lambda each: int(re.match(r"\d+", each.attributes).group()))

    def uses(self, name: str) -> list[tuple[Instruction, int]]:
        """Who takes what an instruction gives, and as which of its operands."""
        return self._uses.get(name, [])

    @functools.cached_property
    def _uses(self) -> dict[str, list[tuple[Instruction, int]]]:
        uses: dict[str, list[tuple[Instruction, int]]] = {}
        for each in self.values():
            for place, operand in enumerate(each.operands):
                uses.setdefault(operand, []).append((each, place))
        return uses


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      computations: By name.
      entry: The one that is run.
    """

    computations: Mapping[str, Computation]
    entry: str

    @functools.cached_property
    def runs(self) -> Mapping[str, int]:
        """How often each computation runs; a loop's body as often as its condition lets it."""
        counts: dict[str, int] = {}

        def visit(name: str, times: int) -> None:
            counts[name] = counts.get(name, 0) + times
            for instruction in self.computations[name].values():
                inner = times * (self._trips(instruction) if instruction.opcode == "while" else 1)
                for called in instruction.called:
                    if called in self.computations:
                        visit(called, inner)

        visit(self.entry, 1)
        return counts

    def _trips(self, loop: Instruction) -> int:
        """How often a loop runs: it counts from 0 to the one number of its condition."""
        if known := _TRIPS.search(loop.attributes):
            return int(known.group(1))
        numbers = set(self._numbers(loop.attribute("condition")))
        return numbers.pop() if len(numbers) == 1 else 1

    def _numbers(self, name: str) -> Iterator[int]:
        for instruction in self.computations.get(name, {}).values():
            if instruction.opcode == "constant" and instruction.arrays[0].dtype in ("s32", "u32"):
                yield int(instruction.operands[0])
            for called in instruction.called:
                yield from self._numbers(called)


def operands(instruction: Instruction, computation: Computation) -> Iterator[HloArray]:
    """What an instruction takes; of what gives several arrays, the first."""
    for name in instruction.operands:
        if name in computation:
            yield from computation[name].arrays[:1]


def parse(text: str) -> Program:
    """Reads what `compiled.as_text()` gives."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" ") and "->" in line:
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            current = computations[name] = Computation()
            entry = name if line.startswith("ENTRY ") else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and " = " in line:
            instruction = _instruction(line)
            current[instruction.name] = instruction
    return Program(computations, entry)


def _instruction(line: str) -> Instruction:
    left, _, right = line.strip().partition(" = ")
    end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    begin = len(opcode)
    close = _closing(rest, begin)
    inside = rest[begin + 1 : close]
    if opcode == "constant":
        operands = (inside,)
    elif opcode == "parameter":
        operands = ()
    else:
        operands = tuple(re.findall(r"%([\w.-]+)", inside))
    return Instruction(
        name=left.removeprefix("ROOT ").lstrip("%"),
        opcode=opcode,
        arrays=tuple(_array(*found) for found in _ARRAY.findall(shape)),
        operands=operands,
        attributes=rest[close + 1 :] if opcode != "parameter" else inside,
        root=left.startswith("ROOT "),
    )


def _closing(text: str, begin: int) -> int:
    """Where the parenthesis that opens at `begin` closes."""
    depth = 0
    for place in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"no closing parenthesis: {text[:80]}")


def _array(dtype: str, dims: str, layout: str) -> HloArray:
    sizes = tuple(int(size.lstrip("<=")) for size in dims.split(",") if size)
    digits = re.search(r"\d+", dtype)
    bits = _BITS.get(dtype, int(digits.group()) if digits else 32)
    elsewhere = re.search(r"S\((\d+)\)", layout or "")
    in_memory = elsewhere is None or elsewhere.group(1) == "0"
    return HloArray(dtype, sizes, math.prod(sizes) * bits // 8, in_memory)
