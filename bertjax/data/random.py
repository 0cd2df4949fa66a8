"""Stateless random numbers: each is a function of the seed and of where it is used.

A number depends on the seed, on its purpose and on counters such as the epoch and the example's
number. It is the same in any order, in any thread and on any host; seeking is free and nothing has
to be saved.

A permutation of any size is a keyed bijection of [0, size) that is never stored: a Feistel network
on the smallest power of two that is not below `size`, with cycle walking (Black and Rogaway 2002,
section 4). Every entry, forwards or backwards, costs the same few operations.
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
    """64 random bits for every combination of counters.

    Args:
      seed: The run's seed, any integer.
      purpose: What the bits are for; other purposes get independent bits.
      *counters: Numbers or arrays of one length, none negative.
    """
    words = np.array([_key(seed, purpose)], np.uint64)
    for counter in counters:
        steps = np.atleast_1d(np.asarray(counter)).astype(np.uint64)
        words = mix(words + steps * _GOLDEN)
    return words


def uniforms(
    seed: int, purpose: str, *counters: int | Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Random numbers in [0, 1), all multiples of 2**-53, for every combination of counters."""
    return (random_words(seed, purpose, *counters) >> 11) * 2.0**-53


def below(
    limits: int | Int[np.ndarray, " n"], draws: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Turns numbers in [0, 1) into integers in [0, limit)."""
    return (draws * limits).astype(np.int64)


def sample(count: int, size: int, seed: int) -> Int[np.ndarray, " n"]:
    """So many of `count` numbers (all if there are fewer), without replacement, ascending."""
    # The raw bits of a bit generator stay the same in every release of numpy.
    drawn = np.argsort(np.random.Philox(key=[seed, 0]).random_raw(count), kind="stable")
    return np.sort(drawn[:size])


# Four rounds make a pseudo-random permutation (Luby and Rackoff 1988); small sizes profit from two
# more, since their halves have few bits.
_ROUNDS = 6


def permute(
    index: Int[np.ndarray, " n"], size: int, seed: int, purpose: str, epoch: int
) -> Int[np.ndarray, " n"]:
    """Where each index goes in the permutation of [0, size) that the key names.

    Args:
      index: Numbers in [0, size).
      size: How many numbers are permuted.
      seed: The run's seed.
      purpose: What is permuted; other purposes have independent permutations.
      epoch: Other epochs have independent permutations.
    """
    return _walk(index, size, _round_keys(seed, purpose, epoch), range(_ROUNDS))


def unpermute(
    index: Int[np.ndarray, " n"], size: int, seed: int, purpose: str, epoch: int
) -> Int[np.ndarray, " n"]:
    """The inverse of `permute`."""
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
    """Changes the two halves of each word in turn; each change is undone by repeating it."""
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    high, low = words >> low_bits, words & low_mask
    for number in rounds:
        if number % 2:
            low = low ^ (mix(high + keys[number]) & low_mask)
        else:
            high = high ^ (mix(low + keys[number]) & high_mask)
    return (high << low_bits) | low
