"""Encode texts and pairs of texts to the batches of a model: its tokenizer, as a callable.

TextEncoder   texts -> batch
check_texts   texts of any caller -> the tuples of texts of its rows, checked
check_batch   refuses texts in place of a batch
"""

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.corpus.documents import replace_surrogates
from bertjax.data.characters import CharacterTable
from bertjax.data.sequence_template import Frame, SequenceTemplate
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.tasks.sequences import Pairs, truncate_longer

Text = str | tuple[str, str]
"""One text, or a pair of texts."""

Row = Text | Mapping[str, Any]
"""A text, a pair, or a row of a table by column name."""


class TextEncoder:
    """The tokenizer of a model: called with texts, it returns a batch.

    All attributes of its `interfaces.Tokenizer` are available too: `encode_batch`, `decode`,
    `vocab_size`, `mask_id` and others.

    Args:
      tokenizer: The tokenizer.
      max_length: Maximum length of a sequence of the model in tokens; infinite without learned
        positions.
      cls_last: Whether [CLS] is the last token of a sequence, as in XLNet.
      max_chars_per_word: Characters per word of `char_ids`; 0 for models that read tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_length: float,
        cls_last: bool = False,
        max_chars_per_word: int = 0,
    ):
        self._tokenizer, self.max_length = tokenizer, max_length
        self._template = SequenceTemplate.from_tokenizer(tokenizer, cls_last=cls_last)
        self._max_chars_per_word = max_chars_per_word

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pickle looks up names before `__init__` has set `_tokenizer`
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __call__(
        self, texts: Text | Sequence[Text], *, max_length: int | None = None
    ) -> dict[str, np.ndarray]:
        """Encodes texts as [CLS] text [SEP], and pairs as [CLS] first [SEP] second [SEP].

        Args:
          texts: One or more texts or pairs.
          max_length: L. Rows are padded to it, so that batches of a loop have one shape, and longer
            sequences are truncated, of a pair the longer text first, as in BERT. None pads to the
            longest sequence and truncates nothing.

        Returns:
          `input_ids`, `segment_ids` (int32 [B L]) and `attention_mask` (bool [B L]); for models
          that read characters also `char_ids` (int16 [B L W]).

        Raises:
          UserError: an item is not a text or a pair, a sequence is longer than the model's
            maximum, or `max_length` is too small.
        """
        rows = list(check_texts(texts))
        if not rows:
            raise UserError("texts: got none, expected at least one")
        limit = self._limit(rows, max_length)
        groups = {}
        for count in (1, 2):
            numbers = [n for n, row in enumerate(rows) if len(row) == count]
            if numbers:
                groups[count] = numbers, self._encode([rows[n] for n in numbers], limit)
        longest = max(int(pairs.lengths.max()) for _, pairs in groups.values())
        if longest > self.max_length:
            raise UserError(
                f"text too long: got {longest:,} tokens, expected at most {self.max_length:,}, the "
                "model's positions; shorten it, or pass max_length to truncate it"
            )
        length = max_length or longest
        batch: dict[str, np.ndarray] = {}
        for numbers, pairs in groups.values():
            for name, values in pairs.rows(np.arange(len(numbers)), length).items():
                shape = (len(rows), *values.shape[1:])
                batch.setdefault(name, np.zeros(shape, values.dtype))[numbers] = values
        return batch

    def _limit(self, rows: Sequence[tuple[str, ...]], max_length: int | None) -> float:
        """Returns the maximum length of a sequence, infinite where none is truncated."""
        if max_length is None:
            return float("inf")
        num_segments = max(map(len, rows))
        smallest = self._template.num_special_tokens(num_segments) + num_segments
        if not smallest <= max_length <= self.max_length:
            raise UserError(
                f"max_length: got {max_length}, expected {smallest} to {self.max_length:,}"
            )
        return max_length

    def _encode(self, members: Sequence[tuple[str, ...]], limit: float) -> Pairs:
        """Encodes sequences that all have one, or all two texts."""
        columns = [list(column) for column in zip(*members, strict=True)]
        ids = [self._tokenizer.encode_batch(column) for column in columns]
        sizes = [np.array([len(row) for row in column], np.int64) for column in ids]
        if limit < float("inf"):
            budget = int(limit) - self._template.num_special_tokens(len(columns))
            if len(sizes) == 2:
                sizes = [*truncate_longer(sizes[0], sizes[1], budget)]
            else:
                sizes = [np.minimum(sizes[0], budget)]
        frame = self._template.frame(sizes)
        _write(frame, ids, sizes)
        extra, tables = {}, {}
        if self._max_chars_per_word:
            table = CharacterTable(self._tokenizer, self._max_chars_per_word)
            words = self._template.map_ids(table.token_row).frame(sizes)
            _write(words, [table.lookup(column) for column in columns], sizes)
            extra["char_ids"], tables["char_ids"] = words.ids, table.table()
        return Pairs.from_frame(frame, self._template, columns=extra, tables=tables)


def check_texts(
    texts: Any, *, max_texts: int = 2, names: Sequence[str] = ()
) -> Iterator[tuple[str, ...]]:
    """Yields the texts of each row, checked; a lone surrogate becomes `?`.

    Args:
      texts: One or more rows: a text, or a tuple or list of several texts.
      max_texts: Maximum number of texts of a row: 1 or 2.
      names: Column names of the texts, if rows may be dicts, whose other keys are ignored.

    Raises:
      UserError: a row has another type or number of texts, or lacks a column.
    """
    expected = "a text" if max_texts == 1 else "a text or a pair of texts"
    if isinstance(texts, str) or (max_texts > 1 and isinstance(texts, tuple)):
        texts = [texts]
    if isinstance(texts, Mapping | bytes) or not isinstance(texts, Iterable):
        dicts = f", also of dicts with the keys {', '.join(names)}" if names else ""
        raise UserError(
            f"texts: got {reprlib.repr(texts)}, expected {expected}, or a list of these{dicts}"
        )
    for number, row in enumerate(texts, 1):
        if names and isinstance(row, Mapping):
            if any(name not in row for name in names):
                raise UserError(
                    f"text {number}: got a dict with {', '.join(map(str, row)) or 'no keys'}, "
                    f"expected the columns of the training data: {', '.join(names)}"
                )
            members: Any = tuple(row[name] for name in names)
        else:
            members = (row,) if isinstance(row, str) else row
        if (
            not isinstance(members, tuple | list)
            or not 1 <= len(members) <= max_texts
            or not all(isinstance(text, str) for text in members)
        ):
            raise UserError(f"text {number}: got {reprlib.repr(row)}, expected {expected}")
        yield tuple(map(replace_surrogates, members))


def check_batch(batch: Any) -> None:
    """Raises `UserError` for texts, or anything else, in place of a batch."""
    if not isinstance(batch, Mapping):
        raise UserError(
            f"batch: got {reprlib.repr(batch)}, expected the arrays of a batch, as the model's "
            "tokenizer returns them; pass model.tokenizer(texts)"
        )


def _write(frame: Frame, columns: Sequence[list[list[int]]], sizes: Sequence[np.ndarray]) -> None:
    """Writes the first `sizes` tokens of every row into the segments of a frame."""
    for segment, (rows, kept) in enumerate(zip(columns, sizes, strict=True)):
        frame.write(segment, (row[:size] for row, size in zip(rows, kept.tolist(), strict=True)))
