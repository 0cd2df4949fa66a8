"""A shuffle of any size that is never stored: a keyed bijection of [0, size).

It is a Feistel network on the smallest power of two that is not below `size`, with cycle walking:
a number that lands outside is sent through again until it lands inside (Black and Rogaway 2002,
section 4). Every entry, forwards or backwards, costs the same few operations.
"""

import numpy as np
from jaxtyping import Int, UInt64

from bertjax.data.randomness import mix, random_words

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
