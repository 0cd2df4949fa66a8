"""Words as rows of character ids, in the format of the released ELMo models.

A word is its UTF-8 bytes between two characters that mark its ends, padded to W numbers. What marks
the beginning or the end of a text is a word of one character of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Int16

from bertjax.errors import UserError

TEXT_BEGIN, TEXT_END, WORD_BEGIN, WORD_END, PADDING = 256, 257, 258, 259, 260
"""Beside the 256 bytes; the numbers of bilm-tf's `UnicodeCharsVocabulary`."""


def spell(words: Sequence[str], max_chars_per_word: int) -> Int16[np.ndarray, "n W"]:
    """Rows of characters; of longer words only the beginning."""
    _check(max_chars_per_word)
    rows = np.full((len(words), max_chars_per_word), PADDING, np.int16)
    rows[:, 0] = WORD_BEGIN
    for row, word in zip(rows, words, strict=True):
        encoded = word.encode("utf-8", "ignore")[: max_chars_per_word - 2]
        row[1 : 1 + len(encoded)] = np.frombuffer(encoded, np.uint8)
        row[1 + len(encoded)] = WORD_END
    return rows


def marked(mark: int, max_chars_per_word: int) -> Int16[np.ndarray, " W"]:
    """The word that stands for the beginning or the end of a text."""
    row = np.full(max_chars_per_word, PADDING, np.int16)
    row[:3] = WORD_BEGIN, mark, WORD_END
    return row


def vocabulary(tokenizer: Any, max_chars_per_word: int) -> Int16[np.ndarray, "V W"]:
    """The characters of everything in a tokenizer's vocabulary.

    [CLS] and [SEP] are the beginning and the end of a text; padding is none at all.
    """
    rows = spell(tokenizer.pieces(list(range(tokenizer.vocab_size))), max_chars_per_word)
    marks = {tokenizer.cls_id: TEXT_BEGIN, tokenizer.sep_id: TEXT_END}
    for identity, mark in marks.items():
        if identity is not None:
            rows[identity] = marked(mark, max_chars_per_word)
    rows[tokenizer.pad_id] = PADDING
    return rows


class CharacterExamples:
    """Examples of a corpus (`data/formats/`) with the characters of words.

    Attributes:
      seed: Of the examples.
      max_seq_length: L.
      num_examples: How many there are in an epoch.
      order: Which example comes where in an epoch.
    """

    def __init__(self, examples: Any, characters: Int16[np.ndarray, "V W"]):
        self._examples, self._characters = examples, characters
        self.seed, self.max_seq_length = examples.seed, examples.max_seq_length
        self.num_examples, self.order = examples.num_examples, examples.order

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """What the examples give, and `char_ids` (int16 [n L W])."""
        batch = self._examples.build(epoch, example)
        return batch | {"char_ids": self._characters[batch["input_ids"]]}


class Spelling:
    """Spells the tokens of texts, each word that occurs once: also those of no vocabulary.

    Number 0 is padding, then come the vocabulary and, as they are met, all other words.
    """

    def __init__(self, tokenizer: Any, max_chars_per_word: int):
        self._tokenizer, self._width = tokenizer, max_chars_per_word
        self._known = vocabulary(tokenizer, max_chars_per_word)
        self._unknown: dict[str, int] = {}

    def forget(self) -> None:
        """Forgets the words of no vocabulary, so that other texts need no memory for these."""
        self._unknown.clear()

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """A number for each token of each text."""
        return [self._of(*self._tokenizer.encode_with_offsets(text), text) for text in texts]

    @staticmethod
    def number(identity: int) -> int:
        """The number of a token of the vocabulary."""
        return identity + 1

    def table(self) -> Int16[np.ndarray, "n W"]:
        """The characters of every number so far."""
        padding = np.full((1, self._width), PADDING, np.int16)
        return np.concatenate([padding, self._known, spell(list(self._unknown), self._width)])

    def _of(self, ids: list[int], spans: list[tuple[int, int]], text: str) -> list[int]:
        unknown = self._tokenizer.unk_id
        return [
            self._stranger(text[begin:end]) if identity == unknown else self.number(identity)
            for identity, (begin, end) in zip(ids, spans, strict=True)
        ]

    def _stranger(self, word: str) -> int:
        first = len(self._known) + 1
        return self._unknown.setdefault(word, first + len(self._unknown))


def _check(max_chars_per_word: int) -> None:
    if max_chars_per_word < 3:
        raise UserError(
            f"max_chars_per_word={max_chars_per_word}: expected 3 or more, two of which mark the "
            f"ends"
        )
