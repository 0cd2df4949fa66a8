"""Random numbers without a state: each is a function of where it is used.

A number depends on the seed, on what it is for and on counters such as the epoch and an example's
number. It is the same in any order, in any thread, on any host; nothing has to be advanced, so
that seeking costs nothing, and nothing has to be saved.
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
