"""Stateless random numbers: counter-based hashes of seed, purpose and counters.

The counters are, for example, the epoch and the index of an example. A random number is the same in
any order of evaluation, in any thread and on any host; seeking costs nothing and there is no
generator state to save.

A permutation of [0, size) is computed, not stored: a Feistel network on the smallest power of two
not below `size`, with cycle walking (Black and Rogaway 2002, section 4). Every entry of the
permutation or its inverse costs the same few operations.
"""

import functools
import hashlib

import numpy as np
from jaxtyping import Float, Int, UInt64

_GOLDEN = 0x9E3779B97F4A7C15


@functools.lru_cache(maxsize=256)
def _key(seed: int, purpose: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def mix(words: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014, figure 17): a bijection of 64 bits."""
    words = (words ^ (words >> 30)) * 0xBF58476D1CE4E5B9
    words = (words ^ (words >> 27)) * 0x94D049BB133111EB
    return words ^ (words >> 31)


def random_words(
    seed: int, purpose: str, *counters: int | Int[np.ndarray, " n"]
) -> UInt64[np.ndarray, " n"]:
    """Generate 64 random bits for every combination of counters.

    Args:
      seed: The run's seed, any integer.
      purpose: Name of the use of the bits; different purposes get independent bits.
      *counters: Integers >= 0, or arrays of them of equal length.
    """
    words = np.array([_key(seed, purpose)], np.uint64)
    for counter in counters:
        steps = np.atleast_1d(np.asarray(counter)).astype(np.uint64)
        words = mix(words + steps * _GOLDEN)
    return words


def uniforms(
    seed: int, purpose: str, *counters: int | Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Generate uniform floats in [0, 1), multiples of 2**-53, for every combination of counters."""
    return (random_words(seed, purpose, *counters) >> 11) * 2.0**-53


def below(
    limits: int | Int[np.ndarray, " n"], uniform: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Convert uniform floats in [0, 1) to uniform integers in [0, limit)."""
    return (uniform * limits).astype(np.int64)


def sample(count: int, size: int, seed: int) -> Int[np.ndarray, " n"]:
    """Sample min(size, count) integers in [0, count) without replacement, sorted."""
    # numpy guarantees the raw bits of a bit generator, unlike samples, for all releases.
    shuffled = np.argsort(np.random.Philox(key=[seed, 0]).random_raw(count), kind="stable")
    return np.sort(shuffled[:size])


# Four rounds make a pseudo-random permutation (Luby and Rackoff 1988). Two more improve small
# sizes, whose halves have few bits.
_ROUNDS = 6


def permute(
    index: Int[np.ndarray, " n"], size: int, seed: int, purpose: str, epoch: int
) -> Int[np.ndarray, " n"]:
    """Map indices by a random permutation of [0, size).

    Args:
      index: Integers in [0, size).
      size: Size of the permutation.
      seed: The run's seed.
      purpose: Name of the use; different purposes have independent permutations.
      epoch: Different epochs have independent permutations.
    """
    return _walk(index, size, _round_keys(seed, purpose, epoch), range(_ROUNDS))


def unpermute(
    index: Int[np.ndarray, " n"], size: int, seed: int, purpose: str, epoch: int
) -> Int[np.ndarray, " n"]:
    """Map indices by the inverse of `permute`."""
    return _walk(index, size, _round_keys(seed, purpose, epoch), range(_ROUNDS)[::-1])


def _round_keys(seed: int, purpose: str, epoch: int) -> UInt64[np.ndarray, " rounds"]:
    return random_words(seed, purpose, epoch, np.arange(_ROUNDS))


def _walk(
    index: Int[np.ndarray, " n"], size: int, keys: UInt64[np.ndarray, " rounds"], rounds: range
) -> Int[np.ndarray, " n"]:
    bits = max(1, (size - 1).bit_length())
    words = _feistel(np.asarray(index).astype(np.uint64), bits, keys, rounds)
    while (outside := np.flatnonzero(words >= size)).size:
        words[outside] = _feistel(words[outside], bits, keys, rounds)
    return words.astype(np.int64)


def _feistel(
    words: UInt64[np.ndarray, " n"], bits: int, keys: UInt64[np.ndarray, " rounds"], rounds: range
) -> UInt64[np.ndarray, " n"]:
    """Change the two halves of each word alternately; each change is its own inverse."""
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    high, low = words >> low_bits, words & low_mask
    for number in rounds:
        if number % 2:
            low = low ^ (mix(high + keys[number]) & low_mask)
        else:
            high = high ^ (mix(low + keys[number]) & high_mask)
    return (high << low_bits) | low
