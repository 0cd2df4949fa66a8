"""What devices can do at most: floating-point operations a second, to measure a run against."""

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bertjax.train.chips import CHIPS, TERA

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
    peak = peak_of_kind(devices[0].device_kind)
    return None if peak is None else len(devices) * peak


def peak_of_kind(device_kind: str) -> float | None:
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
