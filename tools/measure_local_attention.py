"""Measures attention in blocks against full attention with a banded mask, side by side.

    tools/run python tools/measure_local_attention.py --lengths 1024 2048 4096

A forward and backward pass of one self-attention of ModernBERT, with the same number of tokens at
every length. Prints JSON: the medians of interleaved runs in seconds, and their ratio.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.layers import local_attention, masks
from bertjax.layers.attention import masked_softmax_attention, scaled_scores
from bertjax.layers.dense import Precision

PRECISION = Precision()  # float32


def main() -> None:
    """Measures each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192]
    )
    parser.add_argument("--window", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--tokens", type=int, default=8192, help="per batch (default: 8192)")
    parser.add_argument("--heads", type=int, default=4, help="of 64 features (default: 4)")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved runs (default: 5)")
    arguments = parser.parse_args()
    for length in arguments.lengths:
        shape = (max(arguments.tokens // length, 1), length, arguments.heads, 64)
        measured = measure(shape, arguments.window, arguments.repeats)
        print(json.dumps({"batch_size": shape[0], "length": length, **measured}), flush=True)


def measure(shape: tuple[int, ...], window: int, repeats: int) -> dict[str, float]:
    """Median seconds of both ways, and how many times as fast the blocks are."""
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = tuple(jax.random.normal(key, shape) for key in keys)
    mask = masks.padding(jnp.ones(shape[:2], bool)) & masks.window(shape[1], window)

    def full(query, key, value):
        scores = scaled_scores(query, key, PRECISION)
        return masked_softmax_attention(scores, mask.array(), None, value, PRECISION)

    def blocks(query, key, value):
        query, key, value, visible = local_attention.split(query, key, value, mask)
        scores = scaled_scores(query, key, PRECISION)
        context = masked_softmax_attention(scores, visible, None, value, PRECISION)
        return local_attention.merge(context, shape[1], shape[0])

    ways = {"full": full, "blocks": blocks}
    compiled = {name: gradient(way) for name, way in ways.items()}
    for function in compiled.values():
        jax.block_until_ready(function(*arrays))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, function in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(function(*arrays))
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {**medians, "ratio": medians["full"] / medians["blocks"]}


def gradient(attend: Callable) -> Callable:
    """The compiled gradient of the sum of squares."""
    return jax.jit(jax.grad(lambda *a: jnp.square(attend(*a)).sum(), argnums=(0, 1, 2)))


if __name__ == "__main__":
    main()
