"""Encode words as character ids, in the format of the released ELMo models.

A word is encoded as its UTF-8 bytes between a start and an end character, padded to W ids. The
start and the end of a text are encoded as words of one special character.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Int16

from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer

TEXT_BEGIN, TEXT_END, WORD_BEGIN, WORD_END, PADDING = 256, 257, 258, 259, 260
"""Ids after the 256 bytes, as in bilm-tf's `UnicodeCharsVocabulary`."""


def spell(words: Sequence[str], max_chars_per_word: int) -> Int16[np.ndarray, "n W"]:
    """Encode words as rows of character ids; a longer word is truncated.

    Args:
      words: The words.
      max_chars_per_word: W, with start and end character.

    Raises:
      UserError: W is less than 3.
    """
    _check(max_chars_per_word)
    rows = np.full((len(words), max_chars_per_word), PADDING, np.int16)
    rows[:, 0] = WORD_BEGIN
    for row, word in zip(rows, words, strict=True):
        encoded = word.encode("utf-8", "ignore")[: max_chars_per_word - 2]
        row[1 : 1 + len(encoded)] = np.frombuffer(encoded, np.uint8)
        row[1 + len(encoded)] = WORD_END
    return rows


def boundary_word(character: int, max_chars_per_word: int) -> Int16[np.ndarray, " W"]:
    """Encode the start or the end of a text (`TEXT_BEGIN`, `TEXT_END`) as a word."""
    row = np.full(max_chars_per_word, PADDING, np.int16)
    row[:3] = WORD_BEGIN, character, WORD_END
    return row


def vocabulary(tokenizer: Tokenizer, max_chars_per_word: int) -> Int16[np.ndarray, "V W"]:
    """Encode all words of a tokenizer's vocabulary.

    [CLS] and [SEP] are encoded as start and end of a text, [PAD] as padding only.
    """
    rows = spell(tokenizer.ids_to_pieces(list(range(tokenizer.vocab_size))), max_chars_per_word)
    boundaries = {tokenizer.cls_id: TEXT_BEGIN, tokenizer.sep_id: TEXT_END}
    for identity, character in boundaries.items():
        if identity is not None:
            rows[identity] = boundary_word(character, max_chars_per_word)
    rows[tokenizer.pad_id] = PADDING
    return rows


class CharacterExamples:
    """Examples of a corpus (`data/formats/`) with the characters of words.

    Attributes:
      seed: Seed of the examples.
      max_seq_length: L.
      num_examples: Number of examples in an epoch.
      order: Maps positions of an epoch to examples.
    """

    def __init__(self, examples: Any, characters: Int16[np.ndarray, "V W"]):
        self._examples, self._characters = examples, characters
        self.seed, self.max_seq_length = examples.seed, examples.max_seq_length
        self.num_examples, self.order = examples.num_examples, examples.order

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """Build the batch of the examples, with `char_ids` (int16 [n L W])."""
        batch = self._examples.build(epoch, example)
        return batch | {"char_ids": self._characters[batch["input_ids"]]}


class CharacterTable:
    """A growing table of the character ids of words, including words outside the vocabulary.

    Each distinct word is encoded once. Row 0 is padding; then follow the vocabulary, and other
    words in the order of their first occurrence.

    Args:
      tokenizer: The tokenizer of the vocabulary.
      max_chars_per_word: W.
    """

    def __init__(self, tokenizer: Tokenizer, max_chars_per_word: int):
        self._tokenizer, self._width = tokenizer, max_chars_per_word
        self._known = vocabulary(tokenizer, max_chars_per_word)
        self._unknown: dict[str, int] = {}

    def clear_unknown(self) -> None:
        """Remove the words outside the vocabulary, to bound memory over many texts."""
        self._unknown.clear()

    def lookup(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts and return the row of each token; adds rows for new words."""
        return [self._rows(*self._tokenizer.encode_with_offsets(text), text) for text in texts]

    @staticmethod
    def token_row(identity: int) -> int:
        """Return the row of a token of the vocabulary."""
        return identity + 1

    def table(self) -> Int16[np.ndarray, "n W"]:
        """Return the character ids of all rows so far."""
        padding = np.full((1, self._width), PADDING, np.int16)
        return np.concatenate([padding, self._known, spell(list(self._unknown), self._width)])

    def _rows(self, ids: list[int], spans: list[tuple[int, int]], text: str) -> list[int]:
        unknown = self._tokenizer.unk_id
        return [
            self._unknown_row(text[begin:end]) if identity == unknown else self.token_row(identity)
            for identity, (begin, end) in zip(ids, spans, strict=True)
        ]

    def _unknown_row(self, word: str) -> int:
        first = len(self._known) + 1
        return self._unknown.setdefault(word, first + len(self._unknown))


def _check(max_chars_per_word: int) -> None:
    if max_chars_per_word < 3:
        raise UserError(
            f"max_chars_per_word: got {max_chars_per_word}, expected an integer >= 3, as two "
            "characters mark the ends of a word"
        )
