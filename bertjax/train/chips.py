"""TPU chips that need not be here: what they can do, and devices to compile programs for.

Figures are those of Google Cloud's pages on TPU versions; links count in one direction.
"""

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

from bertjax.errors import UserError, nearest

TERA = 1e12
GIGA = 1e9
GIBI = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of chip.

    Attributes:
      name: As topologies begin.
      kinds: What JAX calls its devices.
      flops_per_second: Of bfloat16 products.
      memory_bytes: Of the chip's high-bandwidth memory.
      memory_bytes_per_second: Between it and the chip.
      link_bytes_per_second: To one neighbour, in one direction.
      dimensions: Of the torus; a chip has two neighbours in each.
      network_bytes_per_second: To chips of other slices, its share of the data center network; None
        where no figure is published.
      devices: What JAX counts as a device; these share the chip.
      cores: How the compiler is to take the cores of the chip, where it would take each by itself.
      names_count: What the number in a name such as v5p-512 counts for one chip.
    """

    name: str
    kinds: tuple[str, ...]
    flops_per_second: float
    memory_bytes: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    dimensions: int
    network_bytes_per_second: float | None = None
    devices: int = 1
    cores: str | None = None
    names_count: int = 1


CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v4",
            kinds=("TPU v4",),
            flops_per_second=275 * TERA,
            memory_bytes=32 * GIBI,
            memory_bytes_per_second=1200 * GIGA,
            link_bytes_per_second=50 * GIGA,
            dimensions=3,
            cores="megacore",
            names_count=2,
        ),
        Chip(
            name="v5e",
            kinds=("TPU v5 lite", "TPU v5e"),
            flops_per_second=197 * TERA,
            memory_bytes=16 * GIGA,
            memory_bytes_per_second=819 * GIGA,
            link_bytes_per_second=50 * GIGA,
            dimensions=2,
            network_bytes_per_second=3.125 * GIGA,
        ),
        Chip(
            name="v5p",
            kinds=("TPU v5", "TPU v5p"),
            flops_per_second=459 * TERA,
            memory_bytes=95 * GIBI,
            memory_bytes_per_second=2765 * GIGA,
            link_bytes_per_second=100 * GIGA,
            dimensions=3,
            network_bytes_per_second=6.25 * GIGA,
            names_count=2,
        ),
        Chip(
            name="v6e",
            kinds=("TPU v6 lite", "TPU v6e"),
            flops_per_second=918 * TERA,
            memory_bytes=32 * GIGA,
            memory_bytes_per_second=1638 * GIGA,
            link_bytes_per_second=100 * GIGA,
            dimensions=2,
            network_bytes_per_second=12.5 * GIGA,
        ),
        Chip(
            name="tpu7x",
            kinds=("TPU7x",),
            flops_per_second=2307 * TERA,
            memory_bytes=192 * GIBI,
            memory_bytes_per_second=7380 * GIGA,
            link_bytes_per_second=100 * GIGA,
            dimensions=3,
            network_bytes_per_second=12.5 * GIGA,
            devices=2,
        ),
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
      name: With the shape of a slice, such as v5e:16x16.
      chip: What it is made of.
      slices: How many.
      devices: All of them, as JAX describes them.
    """

    name: str
    chip: Chip
    slices: int
    devices: Sequence[Any]

    @property
    def title(self) -> str:
        """As a person calls it."""
        return self.name if self.slices == 1 else f"{self.slices} slices of {self.name}"

    @property
    def chips(self) -> int:
        """In all slices."""
        return len(self.devices) // self.chip.devices


def topology(name: str, slices: int = 1) -> Topology:
    """The devices of so many slices, by their shape (v5e:16x16) or their usual name (v5e-256).

    Raises:
      UserError: there is no such slice, or the compiler for TPUs is not installed.
    """
    chip, shape = _parsed(name)
    if slices < 1:
        raise UserError(f"--slices {slices}: wanted 1 or more")
    if slices > 1 and chip.network_bytes_per_second is None:
        raise UserError(
            f"--slices {slices}: no figure is published for the network between slices of "
            f"{chip.name}"
        )
    for variable, value in _QUIETLY.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    full = f"{chip.name}:{shape}"
    options = {"num_slices": slices} if slices > 1 else {}
    if chip.cores is not None:
        options["chip_config_name"] = chip.cores
    if _size(shape) == 1:
        options["chips_per_host_bounds"] = [1, 1, 1]
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=full, **options)
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        if "TPU support not installed" in said:
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
