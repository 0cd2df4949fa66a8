"""Language-neutral measures of the quality of a text: lengths, shares, repetitions.

They are those of Rae et al. 2021 ("Gopher", appendix A.1.1) that do not depend on the language.
Words are separated by white space. A repeated line, paragraph or n-gram counts from its second
occurrence on.
"""

import functools
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

_BULLETS = (
    "-",
    "*",
    "\u2022",
    "\u2023",
    "\u25cf",
    "\u25cb",
    "\u25e6",
    "\u25aa",
    "\u2043",
    "\u00b7",
)
_ELLIPSES = ("...", "\u2026")


class TextMeasures:
    """Measures of a text, each computed when it is first used.

    Args:
      text: The text, which is not empty.
    """

    def __init__(self, text: str):
        self._text = text

    @functools.cached_property
    def _words(self) -> list[str]:
        return self._text.split()

    @functools.cached_property
    def _lines(self) -> list[str]:
        return [line.strip() for line in self._text.split("\n") if line.strip()]

    @functools.cached_property
    def _paragraphs(self) -> list[str]:
        return [part.strip() for part in self._text.split("\n\n") if part.strip()]

    @functools.cached_property
    def _vocabulary(self) -> dict[str, int]:
        """The number of each different word."""
        return {word: number for number, word in enumerate(dict.fromkeys(self._words))}

    @functools.cached_property
    def _word_ids(self) -> Int[np.ndarray, " W"]:
        numbers = map(self._vocabulary.__getitem__, self._words)
        return np.fromiter(numbers, np.int64, len(self._words))

    @functools.cached_property
    def _word_lengths(self) -> Int[np.ndarray, " W"]:
        return self._of_words(len)

    @functools.cached_property
    def _num_word_characters(self) -> int:
        return int(self._word_lengths.sum())

    def _of_words(self, measure: Callable[[str], int]) -> Int[np.ndarray, " W"]:
        """Returns a measure of each word, computed once for equal words."""
        values = np.fromiter(map(measure, self._vocabulary), np.int64, len(self._vocabulary))
        return values[self._word_ids]

    def characters(self) -> int:
        """Number of characters."""
        return len(self._text)

    def words(self) -> int:
        """Number of words."""
        return len(self._words)

    def mean_word_length(self) -> float:
        """Mean number of characters of a word."""
        return self._num_word_characters / len(self._words)

    def letters(self) -> float:
        """Share of letters, with their marks, in the characters that are not white space."""
        letters = sum(map(_is_letter, self._text))
        return letters / self._num_word_characters

    def alphabetic_words(self) -> float:
        """Share of words with at least one letter."""
        return float(
            self._of_words(lambda word: word[0].isalpha() or any(map(str.isalpha, word))).mean()
        )

    def symbols_per_word(self) -> float:
        """Number of hash signs, or of ellipses if there are more of them, per word."""
        ellipses = sum(map(self._text.count, _ELLIPSES))
        return max(self._text.count("#"), ellipses) / len(self._words)

    def bullet_lines(self) -> float:
        """Share of lines that start with a bullet."""
        return sum(line.startswith(_BULLETS) for line in self._lines) / len(self._lines)

    def ellipsis_lines(self) -> float:
        """Share of lines that end with an ellipsis."""
        return sum(line.endswith(_ELLIPSES) for line in self._lines) / len(self._lines)

    def repeated_lines(self) -> float:
        """Share of lines that repeat an earlier one."""
        return _repetition_share(self._lines, lambda line: 1)

    def repeated_line_characters(self) -> float:
        """Share of characters in lines that repeat an earlier one."""
        return _repetition_share(self._lines, len)

    def repeated_paragraphs(self) -> float:
        """Share of paragraphs that repeat an earlier one."""
        return _repetition_share(self._paragraphs, lambda paragraph: 1)

    def repeated_paragraph_characters(self) -> float:
        """Share of characters in paragraphs that repeat an earlier one."""
        return _repetition_share(self._paragraphs, len)

    def top_ngram(self, size: int) -> float:
        """Share of characters in the occurrences of the most common n-gram of words.

        An n-gram that occurs once is not counted; of equally common ones the first is.
        """
        starts, ngrams = self._repeated_ngrams(size)
        if not ngrams.size:
            return 0.0
        counts = np.bincount(ngrams)
        start = starts[counts[ngrams] == counts.max()].min()
        length = self._word_lengths[start : start + size].sum()
        return float(counts.max() * length / self._num_word_characters)

    def repeated_ngrams(self, size: int) -> float:
        """Share of characters in n-grams of words that repeat an earlier one.

        Characters in several of them are counted once.
        """
        starts, ngrams = self._repeated_ngrams(size)
        if not ngrams.size:
            return 0.0
        repeats = np.delete(starts, np.unique(ngrams, return_index=True)[1])
        steps = np.zeros(len(self._words) + 1, np.int64)
        steps[repeats] += 1
        steps[repeats + size] -= 1
        inside = np.cumsum(steps)[:-1] > 0
        return float(self._word_lengths[inside].sum() / self._num_word_characters)

    def _repeated_ngrams(self, size: int) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Returns the starts of all n-grams that occur twice or more, and their numbers.

        Starts are in order; equal n-grams have equal numbers.
        """
        while len(self._repeated) < size:
            # Both n-grams of words within a repeated one of one more word are repeated.
            starts, numbers = self._repeated[-1]
            follows = np.flatnonzero(np.diff(starts) == 1)
            pairs = numbers[follows] * len(numbers) + numbers[follows + 1]
            self._repeated.append(_keep_repeated(starts[follows], pairs))
        return self._repeated[size - 1]

    @functools.cached_property
    def _repeated(self) -> list[tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]]:
        return [_keep_repeated(np.arange(len(self._words)), self._word_ids)]


def _keep_repeated(
    starts: Int[np.ndarray, " n"], keys: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """Returns the starts whose key occurs twice or more, and a number for each key."""
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    is_repeated = counts > 1
    kept = is_repeated[inverse]
    return starts[kept], (np.cumsum(is_repeated) - 1)[inverse[kept]]


def _repetition_share(parts: Sequence[str], weight: Callable[[str], int]) -> float:
    seen: set[str] = set()
    repeated = 0
    for part in parts:
        repeated += weight(part) if part in seen else 0
        seen.add(part)
    return repeated / sum(map(weight, parts))


def _is_letter(character: str) -> bool:
    # Vowel signs of Indic scripts, for example, are marks and no letters for Python.
    return character.isalpha() or (
        not character.isascii() and unicodedata.category(character).startswith("M")
    )
