"""Encode one or two texts as a sequence: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

The tokenizer determines the number of [SEP] between two texts: RoBERTa has two. For models with
[CLS] last (XLNet): a [SEP] [CLS], or a [SEP] b [SEP] [CLS], with [CLS] in segment 2.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64

from bertjax.data.characters import CharacterTable
from bertjax.data.sequence_template import Frame, Lengths, SequenceTemplate
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Encoded sequences, stored end to end (ragged), without padding.

    Attributes:
      tokens: The token ids of all sequences, concatenated.
      starts: Offset of each sequence in `tokens`.
      lengths: Length of each sequence in tokens.
      first_lengths: Length of the first segment of each sequence: [CLS] a [SEP].
      pad_id: Token id of the padding after a sequence.
      cls_last: Whether [CLS] is the last token of each sequence.
      columns: Further integers per token, by batch key; 0 in padding.
      tables: For columns that are indices, by batch key: the table whose rows they select.
      truncated: Whether each sequence was truncated; None where that is not recorded.
    """

    tokens: Int32[np.ndarray, " T"]
    starts: Int64[np.ndarray, " n"]
    lengths: Int64[np.ndarray, " n"]
    first_lengths: Int64[np.ndarray, " n"]
    pad_id: int
    cls_last: bool = False
    columns: Mapping[str, Int32[np.ndarray, " T"]] = dataclasses.field(default_factory=dict)
    tables: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    truncated: Bool[np.ndarray, " n"] | None = None

    @classmethod
    def from_frame(cls, frame: Frame, template: SequenceTemplate, **fields: Any) -> "Pairs":
        """Returns the sequences of a ragged frame.

        Args:
          frame: The frame, with all segments written.
          template: The template of the frame.
          fields: Further attributes.
        """
        return cls(
            tokens=frame.ids,
            starts=frame.starts,
            lengths=frame.lengths,
            first_lengths=frame.first_lengths,
            pad_id=template.pad_id,
            cls_last=template.cls_last,
            **fields,
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def cls_positions(self) -> Int64[np.ndarray, " n"]:
        """Position of [CLS] in each sequence."""
        return self.lengths - 1 if self.cls_last else np.zeros_like(self.lengths)

    def rows(self, examples: Int[np.ndarray, " B"], length: int) -> dict[str, np.ndarray]:
        """Returns these examples as a batch padded to `length`: arrays of shape [B, length]."""
        # Padding follows the text for every model. XLNet's released models were padded on the left,
        # but with relative positions that changes no output, so weights can be exchanged as is.
        column = np.arange(length)
        mask: Bool[np.ndarray, "B L"] = column < self.lengths[examples, None]
        places = np.where(mask, self.starts[examples, None] + column, 0)
        second = mask & (column >= self.first_lengths[examples, None])
        segment_ids = second.astype(np.int32)
        if self.cls_last:
            segment_ids[column == self.lengths[examples, None] - 1] = 2
        numbers = {name: np.where(mask, values[places], 0) for name, values in self.columns.items()}
        numbers |= {name: table[numbers[name]] for name, table in self.tables.items()}
        return {
            "input_ids": np.where(mask, self.tokens[places], np.int32(self.pad_id)),
            "segment_ids": segment_ids,
            "attention_mask": mask,
            **numbers,
        }


def encode(
    texts: Sequence[list[str]],
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    cls_last: bool = False,
    max_chars_per_word: int = 0,
    truncate: str = "longer",
) -> Pairs:
    """Tokenizes one or two texts per example and concatenates them with special tokens.

    Args:
      texts: One or two lists of equal length.
      tokenizer: An `interfaces.Tokenizer` with [CLS] and [SEP].
      max_seq_length: Maximum length in tokens; longer sequences are truncated.
      cls_last: Whether [CLS] is the last token of each sequence.
      max_chars_per_word: Characters per word for a `char_ids` column; 0 for no column.
      truncate: Which of two texts is truncated, a key of `TRUNCATIONS`: `longer` or `first`.

    Raises:
      UserError: the tokenizer has no [CLS] or [SEP], or one token of each text does not fit.
    """
    budget = token_budget(tokenizer, len(texts), max_seq_length)
    template = SequenceTemplate.from_tokenizer(tokenizer, cls_last=cls_last)
    encoded = [_encode_distinct(tokenizer.encode_batch, column) for column in texts]
    sizes = [np.array([len(ids) for ids in column], np.int64) for column in encoded]
    kept = kept_tokens(sizes, budget, truncate)
    columns, tables = {}, {}
    if max_chars_per_word:
        character_table = CharacterTable(tokenizer, max_chars_per_word)
        numbers = [_encode_distinct(character_table.lookup, column) for column in texts]
        columns["char_ids"] = _fill(template.map_ids(character_table.token_row), numbers, kept).ids
        tables["char_ids"] = character_table.table()
    return Pairs.from_frame(
        _fill(template, encoded, kept),
        template,
        columns=columns,
        tables=tables,
        truncated=sum(kept) < sum(sizes),
    )


def token_budget(tokenizer: Tokenizer, texts: int, max_seq_length: int) -> int:
    """Returns the number of text tokens that fit into a sequence next to [CLS] and [SEP].

    Args:
      tokenizer: An `interfaces.Tokenizer`.
      texts: Number of texts per sequence, 1 or 2.
      max_seq_length: Maximum length in tokens, special tokens included.

    Raises:
      UserError: the tokenizer has no [CLS] or [SEP], or one token of each text does not fit.
    """
    if tokenizer.cls_id is None or tokenizer.sep_id is None:
        raise UserError(
            "the tokenizer has no [CLS] and [SEP] tokens: fine-tuning requires both; use a "
            "tokenizer that has them"
        )
    specials = SequenceTemplate.from_tokenizer(tokenizer).num_special_tokens(texts)
    if max_seq_length - specials < texts:
        raise UserError(
            f"max_seq_length={max_seq_length} leaves no room for {texts} text(s): expected >= "
            f"{specials + texts}"
        )
    return max_seq_length - specials


def truncate_longer(
    first: Int64[np.ndarray, " n"], second: Int64[np.ndarray, " n"], budget: int
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Truncates the longer text of each pair first, as BERT's `_truncate_seq_pair`.

    BERT drops one token at a time from the longer text, and from the second text of two of equal
    length; this computes the result of that loop in closed form.

    Args:
      first: Lengths of the first texts in tokens.
      second: Lengths of the second texts in tokens.
      budget: Tokens available for both.

    Returns:
      The number of tokens to keep of each first and of each second text.
    """
    kept_second = np.minimum(second, np.maximum(budget // 2, budget - first))
    return np.minimum(first, budget - kept_second), kept_second


def truncate_first(
    first: Int64[np.ndarray, " n"], second: Int64[np.ndarray, " n"], budget: int
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Truncates the first text of each pair, and the second only where it exceeds `budget` alone.

    Arguments and results as for `truncate_longer`.
    """
    kept_second = np.minimum(second, budget)
    return np.minimum(first, budget - kept_second), kept_second


TRUNCATIONS = {"longer": truncate_longer, "first": truncate_first}
"""Truncation strategies of text pairs by name."""


def kept_tokens(sizes: Lengths, budget: int, truncate: str = "longer") -> Lengths:
    """Returns the number of tokens to keep of the one text, or of both texts, of each sequence.

    Args:
      sizes: Lengths of the texts in tokens.
      budget: Tokens available for all texts of a sequence.
      truncate: Which of two texts is truncated, a key of `TRUNCATIONS`.
    """
    if len(sizes) == 2:
        return TRUNCATIONS[truncate](*sizes, budget)
    return (np.minimum(sizes[0], budget),)


def _encode_distinct(
    encode: Callable[[list[str]], list[list[int]]], texts: list[str]
) -> list[Int32[np.ndarray, " t"]]:
    """Encodes each distinct text once: contexts are repeated for every question and choice."""
    distinct = list(dict.fromkeys(texts))
    encoded = {
        text: np.array(ids, np.int32) for text, ids in zip(distinct, encode(distinct), strict=True)
    }
    return [encoded[text] for text in texts]


def _fill(
    template: SequenceTemplate,
    encoded: Sequence[Sequence[Int32[np.ndarray, " t"]]],
    kept: Lengths,
) -> Frame:
    """Returns the sequences of the first `kept` tokens of each text."""
    frame = template.frame(kept)
    for segment, (column, sizes) in enumerate(zip(encoded, kept, strict=True)):
        pairs = zip(column, sizes.tolist(), strict=True)
        frame.write(segment, (ids[:size] for ids, size in pairs))
    return frame
