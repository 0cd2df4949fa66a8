"""Filters of documents: bounds on length and quality, exact and near duplicates.

    parse_filters     ["gopher", "min_words=20"] -> {"min_words": 20.0, ...}
    DocumentFilter    texts -> the first rule that each breaks, and its keys (in worker processes)
    DuplicateIndex    keys -> whether a document was seen before (in order, in one process)

A document is kept or dropped by its own text and the kept documents before it, so that the result
does not depend on the number of workers or on interruptions.

The keys of near duplicates are hashed bands of a MinHash signature (Broder 1997; LSH): documents
whose sets of n-grams have the Jaccard index s share one of b bands of r values with probability
1 - (1 - s^r)^b; b and r are chosen for the threshold. Documents that share a band are near
duplicates (as in Lee et al. 2022, "Deduplicating training data", without the second pass that
compares the texts).
"""

import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8, UInt32, UInt64

from bertjax.corpus.text_measures import TextMeasures
from bertjax.errors import UserError, nearest

DUPLICATES = "duplicates"
"""The filter of documents with the same text as an earlier one; without a value."""

NEAR_DUPLICATES = "near_duplicates"
"""The filter of documents that are similar to an earlier one; its value is the Jaccard index."""

GOPHER = "gopher"
"""The name of all rules below with a value of Rae et al. 2021."""

_SIMILARITY_RANGE = (0.5, 0.95)

NUM_HASHES = 128
"""Values of a signature."""

_SHINGLE_WORDS = 5
# Odd, so that no bits of the first words and characters are lost; different, so that the words of
# "c ab" and "b ac" have different hashes.
_BASE_OF_WORDS = np.uint64(0x9E3779B97F4A7C15)
_BASE_OF_CHARACTERS = np.uint64(0xD1342543DE82EF95)
_NUM_POWERS = 4096
_BATCH = 512
"""N-grams whose values are computed at once: 128 of 4 bytes each, which fit into the L2 cache."""
_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),
    *((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF)),
)
"""Characters of scripts that do not separate words by spaces, each of which is a word."""


class _Rule(NamedTuple):
    """A bound on a measure of a text.

    Attributes:
      measure: The measure.
      gopher: The bound of Rae et al. 2021, appendix A.1.1 and table A1; None for none.
      is_share: Whether the bound must be within 0 and 1.
    """

    measure: Callable[[TextMeasures], float]
    gopher: float | None = None
    is_share: bool = True


def _ngram_rules() -> dict[str, _Rule]:
    top = {2: 0.20, 3: 0.18, 4: 0.16}
    repeated = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    rules = {
        f"max_top_{size}_gram": _Rule(lambda text, size=size: text.top_ngram(size), bound)
        for size, bound in top.items()
    }
    return rules | {
        f"max_repeated_{size}_grams": _Rule(
            lambda text, size=size: text.repeated_ngrams(size), bound
        )
        for size, bound in repeated.items()
    }


RULES: Mapping[str, _Rule] = {
    "min_characters": _Rule(TextMeasures.characters, is_share=False),
    "max_characters": _Rule(TextMeasures.characters, is_share=False),
    "min_words": _Rule(TextMeasures.words, 50, is_share=False),
    "max_words": _Rule(TextMeasures.words, 100_000, is_share=False),
    "min_mean_word_length": _Rule(TextMeasures.mean_word_length, 3, is_share=False),
    "max_mean_word_length": _Rule(TextMeasures.mean_word_length, 10, is_share=False),
    "min_letters": _Rule(TextMeasures.letters),
    "min_alphabetic_words": _Rule(TextMeasures.alphabetic_words, 0.8),
    "max_symbols_per_word": _Rule(TextMeasures.symbols_per_word, 0.1, is_share=False),
    "max_bullet_lines": _Rule(TextMeasures.bullet_lines, 0.9),
    "max_ellipsis_lines": _Rule(TextMeasures.ellipsis_lines, 0.3),
    "max_repeated_lines": _Rule(TextMeasures.repeated_lines, 0.3),
    "max_repeated_line_characters": _Rule(TextMeasures.repeated_line_characters, 0.2),
    "max_repeated_paragraphs": _Rule(TextMeasures.repeated_paragraphs, 0.3),
    "max_repeated_paragraph_characters": _Rule(TextMeasures.repeated_paragraph_characters, 0.2),
    **_ngram_rules(),
}
"""Rules by name, in the order in which they are tested. The name starts with min_ or max_."""


def parse_filters(filters: Sequence[str]) -> dict[str, float]:
    """Parse filters as users write them; a later one replaces an earlier one of the same name.

    Args:
      filters: `gopher`, `duplicates`, or NAME=NUMBER with a name of `RULES` or `near_duplicates`.

    Returns:
      The bounds by name, in the order of `RULES`; that of `duplicates` is 1.

    Raises:
      UserError: A name is unknown, or a value is not a number within its range.
    """
    bounds: dict[str, float] = {}
    for entry in filters:
        name, equals, value = entry.partition("=")
        if name in (GOPHER, DUPLICATES):
            if equals:
                raise UserError(f"filter {entry!r}: got a value, expected {name} alone")
            gopher = {rule: RULES[rule].gopher for rule in RULES if RULES[rule].gopher is not None}
            bounds |= gopher if name == GOPHER else {name: 1.0}
        else:
            bounds[name] = _parse_bound(entry, name, value)
    order = [*RULES, DUPLICATES, NEAR_DUPLICATES]
    return dict(sorted(bounds.items(), key=lambda item: order.index(item[0])))


class FilterName:
    """A constraint on a config's field: a filter as users write it."""

    def violation(self, value: object) -> str | None:
        """Returns "expected ..." for an invalid filter, else None."""
        try:
            parse_filters([str(value)])
        except UserError as error:
            return f"expected NAME=NUMBER or a name of a filter ({error})"
        return None


def _parse_bound(entry: str, name: str, value: str) -> float:
    if name != NEAR_DUPLICATES and name not in RULES:
        known = [GOPHER, DUPLICATES, NEAR_DUPLICATES, *RULES]
        raise UserError(f"unknown filter {name!r}: {nearest(name, known)}")
    if name == NEAR_DUPLICATES:
        low, high = _SIMILARITY_RANGE
    else:
        low, high = 0.0, 1.0 if RULES[name].is_share else float("inf")
    try:
        bound = float(value)
    except ValueError:
        bound = float("nan")
    if not low <= bound <= high or bound == float("inf"):
        bounds = f"from {low:g} to {high:g}" if high < float("inf") else f">= {low:g}"
        raise UserError(
            f"filter {entry!r}: got {value or 'no value'!r}, expected a number {bounds}"
        )
    return bound


class Verdicts(NamedTuple):
    """Results of `DocumentFilter` for a block of documents.

    Attributes:
      broken_rules: The first rule that each document breaks; "" for none.
      keys: Keys that a document shares with its duplicates, K for each document without a broken
        rule; the first is that of its whole text if exact duplicates are filtered.
    """

    broken_rules: list[str]
    keys: UInt64[np.ndarray, "N K"]


class DocumentFilter:
    """A function that tests documents by rules, and computes their keys.

    Args:
      bounds: Those of `parse_filters`.
    """

    def __init__(self, bounds: Mapping[str, float]):
        self._bounds = {name: bound for name, bound in bounds.items() if name in RULES}
        self._keys: list[Callable[[str], list[int]]] = []
        if DUPLICATES in bounds:
            self._keys.append(lambda text: [_hash(text.encode())])
        if NEAR_DUPLICATES in bounds:
            self._keys.append(BandHashes(bounds[NEAR_DUPLICATES]))

    def __call__(self, texts: list[str]) -> Verdicts:
        broken = [self._broken_rule(text) for text in texts]
        kept = [text for text, rule in zip(texts, broken, strict=True) if not rule]
        rows = [[key for keys in self._keys for key in keys(text)] for text in kept]
        width = len(rows[0]) if rows else 0
        return Verdicts(broken, np.array(rows, np.uint64).reshape(len(kept), width))

    def _broken_rule(self, text: str) -> str:
        measures = TextMeasures(text)
        for name, bound in self._bounds.items():
            value = RULES[name].measure(measures)
            if value < bound if name.startswith("min_") else value > bound:
                return name
        return ""


class DuplicateIndex:
    """The keys of all documents that have been kept.

    Args:
      bounds: Those of `parse_filters`.
      seen: Keys of the documents that earlier calls have kept.
    """

    def __init__(self, bounds: Mapping[str, float], seen: Iterable[int] = ()):
        self._has_exact = DUPLICATES in bounds
        self._seen = set(seen)

    def add(self, keys: UInt64[np.ndarray, " K"]) -> str:
        """Add a document; return the filter that drops it as a duplicate, "" for none."""
        numbers = keys.tolist()
        if self._has_exact and numbers[0] in self._seen:
            return DUPLICATES
        if not self._seen.isdisjoint(numbers):
            return NEAR_DUPLICATES
        self._seen.update(numbers)
        return ""


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


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
        bands = datasketch.MinHashLSH(threshold=threshold, num_perm=NUM_HASHES)
        self._num_bands, self._band_size = bands.b, bands.r
        self._empty = datasketch.MinHash(
            NUM_HASHES, seed=1, gpu_mode="disable", scheme="affine32", hashfunc=int
        )

    def __call__(self, text: str) -> list[int]:
        signature = self._empty.copy()
        hashes = _shingle_hashes(text)
        for start in range(0, len(hashes), _BATCH):
            signature.update_batch(hashes[start : start + _BATCH].tolist())
        values = signature.hashvalues.astype("<u4")
        return [
            _hash_band(number, values[start : start + self._band_size].tobytes())
            for number, start in enumerate(
                range(0, self._num_bands * self._band_size, self._band_size)
            )
        ]


def _shingle_hashes(text: str) -> UInt32[np.ndarray, " n"]:
    """Hashes the n-grams of words: a polynomial of the hashes of the words.

    Equal n-grams have equal hashes, which do not change a minimum.
    """
    hashes = _word_hashes(text)
    count = max(len(hashes) - _SHINGLE_WORDS + 1, 1)
    shingles = np.zeros(count, np.uint64)
    for offset in range(min(_SHINGLE_WORDS, len(hashes))):
        shingles = shingles * _BASE_OF_WORDS + hashes[offset : offset + count]
    return (shingles >> np.uint64(32)).astype(np.uint32)


def _word_hashes(text: str) -> UInt64[np.ndarray, " w"]:
    """Hashes the words in lower case: a polynomial of random values of their characters.

    A text without words has the hash of its characters.
    """
    codes = np.frombuffer(text.lower().encode("utf-32-le", "surrogatepass"), np.uint32)
    table = _character_table()
    places = np.flatnonzero(table.kinds[codes])
    if not places.size:
        return np.array([_hash(text.encode("utf-8", "surrogatepass"))], np.uint64)
    kinds = table.kinds[codes[places]]
    begins_word = np.ones(len(places), bool)
    # After a gap, and before and after a character that is a word.
    begins_word[1:] = (np.diff(places) > 1) | (np.maximum(kinds[1:], kinds[:-1]) == _WORD)
    begins = np.flatnonzero(begins_word)
    positions = np.arange(len(places)) - np.repeat(begins, np.diff(begins, append=len(places)))
    values = table.values[codes[places]] * table.powers[positions % _NUM_POWERS]
    return np.add.reduceat(values, begins)


_LETTER, _WORD = 1, 2
"""Kinds of characters: part of a word, and a word of one character; 0 for others."""


class _CharacterTable(NamedTuple):
    kinds: UInt8[np.ndarray, " U"]
    values: UInt64[np.ndarray, " U"]
    powers: UInt64[np.ndarray, " P"]


@functools.cache
def _character_table() -> _CharacterTable:
    """Kinds and random values of all characters of Unicode."""
    count = sys.maxunicode + 1
    kinds = np.fromiter(map(str.isalnum, map(chr, range(count))), np.uint8, count) * _LETTER
    for first, last in _UNSPACED:
        kinds[first : last + 1] = _WORD
    # numpy guarantees the raw bits of a bit generator for all releases.
    values = np.random.Philox(key=0).random_raw(count)
    return _CharacterTable(kinds, values, np.cumprod(np.full(_NUM_POWERS, _BASE_OF_CHARACTERS)))


def _hash_band(number: int, values: bytes) -> int:
    digest = hashlib.blake2b(values, digest_size=8, salt=number.to_bytes(2, "little"))
    return int.from_bytes(digest.digest(), "little")
