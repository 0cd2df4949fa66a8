"""Hardware specifications: peak FLOP/s, memory and bandwidth of devices; TPU topologies.

TPU figures are from Google Cloud's pages on TPU versions; link bandwidth is per direction. The peak
FLOP/s of a run's devices are the denominator of its model FLOPs utilisation (MFU).
"""

import dataclasses
import functools
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.errors import UserError, nearest

TERA = 1e12
GIGA = 1e9
GIBI = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """The specification of a TPU chip.

    Attributes:
      name: The TPU version, the first part of the name of a topology.
      kinds: Values of JAX's `device_kind` for its devices.
      flops_per_second: Peak of bfloat16 matmuls.
      peaks_8bit: Peaks of matmuls with 8-bit operands, "int8" or "float8", in operations per
        second, where they exceed that of bfloat16.
      memory_bytes: Size of the high-bandwidth memory (HBM). Programs have slightly less: 15.75 GiB
        of the 16 of v5e, as its compiler reports.
      memory_bytes_per_second: Bandwidth of the HBM.
      link_bytes_per_second: Bandwidth to one neighbour, in one direction.
      dimensions: Number of dimensions of the torus; a chip has two neighbours in each.
      network_bytes_per_second: The chip's share of the data center network, over which it reaches
        other slices; None where no figure is published.
      devices: Number of JAX devices of a chip, which share its memory and bandwidth.
      cores: Value of the compiler option `chip_config_name`; None for its default, one device per
        core.
      name_units_per_chip: Amount by which one chip increases the number in a name such as v5p-512,
        which counts cores for some versions.
    """

    name: str
    kinds: tuple[str, ...]
    flops_per_second: float
    peaks_8bit: Mapping[str, float]
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
            peaks_8bit={},  # int8 is as fast as bfloat16
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
            peaks_8bit={"int8": 394 * TERA},
            memory_bytes=16 * GIBI,
            memory_bytes_per_second=819 * GIGA,
            link_bytes_per_second=50 * GIGA,
            dimensions=2,
            network_bytes_per_second=3.125 * GIGA,
        ),
        Chip(
            name="v5p",
            kinds=("TPU v5", "TPU v5p"),
            flops_per_second=459 * TERA,
            peaks_8bit={"int8": 918 * TERA},
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
            peaks_8bit={"int8": 1836 * TERA},
            memory_bytes=32 * GIBI,
            memory_bytes_per_second=1638 * GIGA,
            link_bytes_per_second=100 * GIGA,
            dimensions=2,
            network_bytes_per_second=12.5 * GIGA,
        ),
        Chip(
            name="tpu7x",
            kinds=("TPU7x",),
            flops_per_second=2307 * TERA,
            peaks_8bit={"float8": 4614 * TERA},
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
"""Usual slice shapes by number of dimensions, in ascending number of chips."""

# Without these libtpu queries the metadata server, and logs errors on a machine that has none.
_LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or several TPU slices, connected by the data center network.

    Attributes:
      name: Version and shape of a slice, such as v5e:16x16.
      chip: The kind of chip.
      slices: Number of slices.
      devices: JAX's device descriptions of all slices.
    """

    name: str
    chip: Chip
    slices: int
    devices: Sequence[Any]

    @property
    def title(self) -> str:
        """The name with the number of slices, for messages."""
        return self.name if self.slices == 1 else f"{self.slices} slices of {self.name}"

    @property
    def chips(self) -> int:
        """Number of chips in all slices."""
        return len(self.devices) // self.chip.devices


def get_topology(name: str, slices: int = 1) -> Topology:
    """Describe TPU slices to compile for, without TPU hardware.

    Args:
      name: Version and shape of a slice (v5e:16x16), or the usual name (v5e-256).
      slices: Number of slices.

    Raises:
      UserError: There is no such slice, or the TPU compiler is not installed.
    """
    chip, shape = _parse_slice(name)
    if slices < 1:
        raise UserError(f"--slices: got {slices}, expected an integer >= 1")
    if slices > 1 and chip.network_bytes_per_second is None:
        raise UserError(
            f"--slices: got {slices}, expected 1 for {chip.name}, whose bandwidth between slices "
            "is not published; plan a single slice"
        )
    for variable, value in _LIBTPU_ENVIRONMENT.items():
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
        reason = str(error).strip().splitlines()[0]
        if "TPU support not installed" in reason:
            raise UserError(
                f"the TPU compiler is not installed ({reason}); pip install 'bertjax[tpu]'"
            ) from None
        raise UserError(
            f"unknown topology: got {full!r} ({reason}), expected one such as {_usual_slices(chip)}"
        ) from None
    return Topology(full, chip, slices, description.devices)


def _parse_slice(name: str) -> tuple[Chip, str]:
    kind, mark, rest = re.fullmatch(r"([^:-]*)([:-]?)(.*)", name).groups()
    if kind not in CHIPS:
        raise UserError(f"unknown TPU version {kind!r}: {nearest(kind, CHIPS)}")
    chip = CHIPS[kind]
    if mark == ":" and re.fullmatch(r"\d+(x\d+)*", rest):
        return chip, rest
    by_count = {
        str(_size(shape) * chip.name_units_per_chip): shape for shape in _SHAPES[chip.dimensions]
    }
    if mark == "-" and rest in by_count:
        return chip, by_count[rest]
    raise UserError(f"unknown topology: got {name!r}, expected one such as {_usual_slices(chip)}")


def _size(shape: str) -> int:
    size = 1
    for side in shape.split("x"):
        size *= int(side)
    return size


def _usual_slices(chip: Chip) -> str:
    shapes = _SHAPES[chip.dimensions]
    named = [f"{chip.name}-{_size(shape) * chip.name_units_per_chip}" for shape in shapes[1:]]
    return f"{chip.name}:{shapes[1]}, {chip.name}:{shapes[-1]}, {', '.join(named)}"


_TERAFLOPS = {
    # Google Cloud's pages on TPU versions: bfloat16. A v2 or v3 chip is two JAX devices.
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


def check_8bit(quantized: str, device_kind: str) -> None:
    """Checks that a TPU has matmuls with 8-bit operands.

    Args:
      quantized: As in `layers.dense.Precision`; "" for none.
      device_kind: JAX's `device_kind`. Other devices than TPUs are not checked.

    Raises:
      UserError: the TPU has none of this type that are faster than bfloat16.
    """
    for chip in CHIPS.values():
        if device_kind in chip.kinds and quantized and quantized not in chip.peaks_8bit:
            raise UserError(
                f"config.model.precision: got {quantized}, expected "
                f"{', '.join([*chip.peaks_8bit, 'bfloat16', 'float32'])}: on a TPU {chip.name} "
                f"matmuls in {quantized} are not faster than in bfloat16"
            )


def peak_flops_per_second(devices: Sequence[jax.Device], dtype: jnp.dtype) -> float | None:
    """Return the peak FLOP/s of all devices together, or None for an unknown kind.

    Accelerators are looked up in a table, at bfloat16. A CPU is measured for 0.3 seconds, with
    matmuls of `dtype` operands and float32 results; the CPU devices of a process share its cores.

    Args:
      devices: Devices of one kind.
      dtype: Operand dtype of the matmuls that measure a CPU.
    """
    if devices[0].platform == "cpu":
        processes = len({device.process_index for device in devices})
        return processes * _measure_cpu_peak(dtype)
    peak = peak_flops_of_kind(devices[0].device_kind)
    return None if peak is None else len(devices) * peak


def peak_flops_of_kind(device_kind: str) -> float | None:
    """Look up the peak FLOP/s of one device by JAX's `device_kind`, such as "TPU v5 lite"."""
    if device_kind in _PEAKS:
        return _PEAKS[device_kind]
    words = device_kind.replace("-", " ").split()
    known = [name for name in _PEAKS if set(name.split()) <= set(words)]
    return _PEAKS[max(known, key=len)] if known else None


@functools.cache
def _measure_cpu_peak(dtype: jnp.dtype) -> float:
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
