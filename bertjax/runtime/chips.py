"""TPU chips and topologies: peak FLOP/s, memory, bandwidth; devices for ahead-of-time compiles.

Figures are from Google Cloud's pages on TPU versions; links are counted in one direction. Peak
FLOP/s of the devices at hand are the denominator of model FLOPs utilisation.
"""

import dataclasses
import os
import re
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

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
      name_units_per_chip: What the number in a name such as v5p-512 counts for one chip.
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
    name_units_per_chip: int = 1


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
            name_units_per_chip=2,
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
            name_units_per_chip=2,
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
        """As the user calls it."""
        return self.name if self.slices == 1 else f"{self.slices} slices of {self.name}"

    @property
    def chips(self) -> int:
        """In all slices."""
        return len(self.devices) // self.chip.devices


def get_topology(name: str, slices: int = 1) -> Topology:
    """The devices of so many slices, by their shape (v5e:16x16) or their usual name (v5e-256).

    Raises:
      UserError: there is no such slice, or the compiler for TPUs is not installed.
    """
    chip, shape = _parsed(name)
    if slices < 1:
        raise UserError(f"--slices {slices}: expected 1 or more")
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
    by_count = {
        str(_size(shape) * chip.name_units_per_chip): shape for shape in _SHAPES[chip.dimensions]
    }
    if mark == "-" and rest in by_count:
        return chip, by_count[rest]
    raise UserError(f"no topology {name!r}: expected one such as {_usual(chip)}")


def _size(shape: str) -> int:
    size = 1
    for side in shape.split("x"):
        size *= int(side)
    return size


def _usual(chip: Chip) -> str:
    shapes = _SHAPES[chip.dimensions]
    named = [f"{chip.name}-{_size(shape) * chip.name_units_per_chip}" for shape in shapes[1:]]
    return f"{chip.name}:{shapes[1]}, {chip.name}:{shapes[-1]}, {', '.join(named)}"


_TERAFLOPS = {
    # Google Cloud's pages on TPU versions: bfloat16. On v2 and v3 a chip is two devices.
    "TPU v2": 46 / 2,
    "TPU v3": 123 / 2,
    # NVIDIA's data sheets: dense bfloat16, or float16 where there is no bfloat16 (V100, T4).
    "V100": 125,
    "T4": 65,
    "A10G": 70,
    "A10": 125,
    "A40": 149.7,
    "A100": 312,
    "L4": 121,
    "L40S": 362,
    "H100 PCIe": 756,
    "H100": 989.4,
    "H200": 989.4,
    "GH200": 989.4,
    "B200": 2250,
    # AMD's data sheets: dense bfloat16. A device is one of the two dies of an MI250X.
    "MI250X": 383 / 2,
    "MI300X": 1307.4,
}

_PEAKS = {kind: TERA * peak for kind, peak in _TERAFLOPS.items()} | {
    kind: chip.flops_per_second / chip.devices for chip in CHIPS.values() for kind in chip.kinds
}

_CPU_BENCHMARK_SECONDS = 0.3
_CPU_MATRIX = 1536


def peak_flops_per_second(devices: Sequence[jax.Device], dtype: jnp.dtype) -> float | None:
    """What all of these devices can do together, or None for a kind that is not known.

    Accelerators are looked up, at bfloat16. A CPU is measured for a moment by products of matrices
    of `dtype` with float32 results; devices that one process sees share its cores.
    """
    if devices[0].platform == "cpu":
        processes = len({device.process_index for device in devices})
        return processes * _measured_on_cpu(dtype)
    peak = peak_flops_of_kind(devices[0].device_kind)
    return None if peak is None else len(devices) * peak


def peak_flops_of_kind(device_kind: str) -> float | None:
    """Operations a second of one device, by what JAX calls it, such as "TPU v5 lite"."""
    if device_kind in _PEAKS:
        return _PEAKS[device_kind]
    words = device_kind.replace("-", " ").split()
    known = [name for name in _PEAKS if set(name.split()) <= set(words)]
    return _PEAKS[max(known, key=len)] if known else None


def _measured_on_cpu(dtype: jnp.dtype) -> float:
    device = jax.local_devices(backend="cpu")[0]
    matrix = jax.device_put(jnp.ones((_CPU_MATRIX, _CPU_MATRIX), dtype), device)
    product = jax.jit(lambda a: jax.lax.dot(a, a, preferred_element_type=jnp.float32))
    product(matrix).block_until_ready()
    best, end = float("inf"), time.monotonic() + _CPU_BENCHMARK_SECONDS
    while time.monotonic() < end:
        start = time.perf_counter()
        product(matrix).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * _CPU_MATRIX**3 / best
