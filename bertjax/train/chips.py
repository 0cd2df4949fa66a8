"""TPU chips that need not be here: what they can do, and devices to compile programs for.

Figures are those of Google Cloud's pages on TPU versions; links count in one direction.
"""

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

from bertjax.errors import UserError, nearest
from bertjax.train.peak import TERA

GIGA = 1e9
GIBI = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of chip.

    Attributes:
      name: As topologies begin.
      flops_per_second: Of bfloat16 products.
      memory_bytes: Of the chip's high-bandwidth memory.
      memory_bytes_per_second: Between it and the chip.
      link_bytes_per_second: To one neighbour, in one direction.
      dimensions: Of the torus; a chip has two neighbours in each.
      devices: What JAX counts as a device; these share the chip.
      names_count: What the number in a name such as v5p-512 counts for one chip.
    """

    name: str
    flops_per_second: float
    memory_bytes: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    dimensions: int
    devices: int = 1
    names_count: int = 1


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 275 * TERA, 32 * GIBI, 1200 * GIGA, 50 * GIGA, 3, names_count=2),
        Chip("v5e", 197 * TERA, 16 * GIGA, 819 * GIGA, 50 * GIGA, 2),
        Chip("v5p", 459 * TERA, 95 * GIBI, 2765 * GIGA, 100 * GIGA, 3, names_count=2),
        Chip("v6e", 918 * TERA, 32 * GIGA, 1638 * GIGA, 100 * GIGA, 2),
        Chip("tpu7x", 2307 * TERA, 192 * GIBI, 7380 * GIGA, 100 * GIGA, 3, devices=2),
    )
}

_SHAPES = {
    2: ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    3: (
        *("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"),
        *("8x8x8", "8x8x16", "8x16x16", "16x16x16"),
    ),
}
"""The usual shape of a slice of so many chips."""

# libtpu asks the machine what it is, and complains where nobody answers.
_QUIETLY = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of a pod, or several that a data center network joins.

    Attributes:
      name: With its shape, such as v5e:16x16.
      chip: What it is made of.
      slices: How many.
      devices: All of them, as JAX describes them.
    """

    name: str
    chip: Chip
    slices: int
    devices: Sequence[Any]

    @property
    def chips(self) -> int:
        """In all slices."""
        return len(self.devices) // self.chip.devices


def topology(name: str, slices: int = 1) -> Topology:
    """The devices of a slice, by its shape (v5e:16x16) or its usual name (v5e-256).

    Raises:
      UserError: there is no such slice, or the compiler for TPUs is not installed.
    """
    chip, shape = _parsed(name)
    for variable, value in _QUIETLY.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    full = f"{chip.name}:{shape}"
    options = {"num_slices": slices} if slices > 1 else {}
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=full, **options)
    except Exception as error:
        said = str(error).strip().splitlines()[0]
        if "libtpu" in said.lower() or isinstance(error, ImportError):
            raise UserError(
                f"no compiler for TPUs here ({said}): pip install 'bertjax[tpu]'"
            ) from None
        raise UserError(f"no topology {full!r}: {said}; usual ones: {_usual(chip)}") from None
    return Topology(full, chip, slices, description.devices)


def _parsed(name: str) -> tuple[Chip, str]:
    kind, mark, rest = re.fullmatch(r"([^:-]*)([:-]?)(.*)", name).groups()
    if kind not in CHIPS:
        raise UserError(f"no TPU {kind!r}: {nearest(kind, CHIPS)}")
    chip = CHIPS[kind]
    if mark == ":" and re.fullmatch(r"\d+(x\d+)*", rest):
        return chip, rest
    by_count = {str(_size(shape) * chip.names_count): shape for shape in _SHAPES[chip.dimensions]}
    if mark == "-" and rest in by_count:
        return chip, by_count[rest]
    raise UserError(f"no topology {name!r}: wanted one such as {_usual(chip)}")


def _size(shape: str) -> int:
    size = 1
    for side in shape.split("x"):
        size *= int(side)
    return size


def _usual(chip: Chip) -> str:
    shapes = _SHAPES[chip.dimensions]
    named = [f"{chip.name}-{_size(shape) * chip.names_count}" for shape in shapes[1:]]
    return f"{chip.name}:{shapes[1]}, {chip.name}:{shapes[-1]}, {', '.join(named)}"
