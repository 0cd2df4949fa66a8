"""Random bits as `jax.random.bits` draws them, in one pass over memory on CPUs too.

There JAX writes Threefry's rounds as a loop, whose every turn goes through memory; written out they
stay in registers.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, Key, UInt16, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_GROUPS_OF_ROUNDS = 5
_COUNTED = 2**32
"""Elements that one word can count; of more the upper word would not be zero."""


def bits16(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt16[Array, "..."]:
    """16 random bits for each element: `jax.random.bits(key, shape, "uint16")`, to the bit."""
    if str(jax.random.key_impl(key)) != "threefry2x32" or math.prod(shape) > _COUNTED:
        return jax.random.bits(key, shape, jnp.uint16)
    drawn = functools.partial(jax.random.bits, shape=shape, dtype=jnp.uint16)
    return lax.platform_dependent(key, cpu=functools.partial(_once, shape), default=drawn)


def _once(shape: tuple[int, ...], key: Key[Array, ""]) -> UInt16[Array, "..."]:
    # A function that XLA calls: else it merges a copy of all rounds with each reader of the bits.
    with set_xla_metadata(inlineable="false"):
        return _written_out(shape, key)


@functools.partial(jax.jit, static_argnums=0)
def _written_out(shape: tuple[int, ...], key: Key[Array, ""]) -> UInt16[Array, "..."]:
    counts = _counts(shape)
    first, second = threefry2x32(jax.random.key_data(key), jnp.zeros_like(counts), counts)
    return (first ^ second).astype(jnp.uint16)


def _counts(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """The number of each element, axis by axis: a mesh can take its part of it."""
    counts, apart = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        counts = counts + lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(apart)
        apart *= shape[axis]
    return counts


def threefry2x32(
    key: UInt32[Array, "2"], first: UInt32[Array, "*shape"], second: UInt32[Array, "*shape"]
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """The block cipher of two words, in 20 rounds (Salmon et al. 2011, section 4.2)."""
    words = key[0], key[1], key[0] ^ key[1] ^ _PARITY
    first, second = first + words[0], second + words[1]
    for group in range(_GROUPS_OF_ROUNDS):
        for distance in _ROTATIONS[group % 2]:
            first = first + second
            second = first ^ _rotated(second, distance)
        first = first + words[(group + 1) % 3]
        second = second + words[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def _rotated(x: UInt32[Array, "*shape"], distance: int) -> UInt32[Array, "*shape"]:
    return (x << np.uint32(distance)) | (x >> np.uint32(32 - distance))
