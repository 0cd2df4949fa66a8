"""Keys of near duplicates: hashed bands of a MinHash signature (Broder 1997; LSH).

Two documents whose sets of n-grams have the Jaccard index s share one of b bands of r values with
probability 1 - (1 - s^r)^b; b and r are chosen for the threshold. Documents that share a band are
near duplicates (as in Lee et al. 2022, "Deduplicating training data", without the second pass
that compares the texts).
"""

import hashlib
import re

from bertjax.errors import UserError

NUM_HASHES = 128
"""Values of a signature."""

_SHINGLE_WORDS = 5
# Words, or single characters of scripts that do not separate words by spaces.
_WORD = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W_]+"
)


class BandHashes:
    """A function that returns the keys of a text, one for each band of its signature.

    Args:
      threshold: The Jaccard index of the n-grams from which two documents are near duplicates.

    Raises:
      UserError: datasketch is not installed.
    """

    def __init__(self, threshold: float):
        try:
            import datasketch
        except ImportError as error:
            raise UserError(
                f"filter near_duplicates: {error}; pip install 'bertjax[dedup]'"
            ) from None
        self._new = datasketch.MinHash
        bands = datasketch.MinHashLSH(threshold=threshold, num_perm=NUM_HASHES)
        self._num_bands, self._band_size = bands.b, bands.r
        self._empty = self._new(NUM_HASHES, seed=1, gpu_mode="disable", scheme="affine32")

    def __call__(self, text: str) -> list[int]:
        signature = self._empty.copy()
        signature.update_batch(sorted(_shingles(text)))
        values = signature.hashvalues.astype("<u4")
        return [
            _hash_band(number, values[start : start + self._band_size].tobytes())
            for number, start in enumerate(
                range(0, self._num_bands * self._band_size, self._band_size)
            )
        ]


def _shingles(text: str) -> set[bytes]:
    words = _WORD.findall(text.lower()) or [text]
    count = max(len(words) - _SHINGLE_WORDS + 1, 1)
    return {" ".join(words[start : start + _SHINGLE_WORDS]).encode() for start in range(count)}


def _hash_band(number: int, values: bytes) -> int:
    digest = hashlib.blake2b(values, digest_size=8, salt=number.to_bytes(2, "little"))
    return int.from_bytes(digest.digest(), "little")
