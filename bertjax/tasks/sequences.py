"""Encode one or two texts as a sequence: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

Between two texts stand as many [SEP] as the tokenizer says: RoBERTa has two. For models that want
[CLS] last: a [SEP] [CLS], or a [SEP] b [SEP] [CLS], with [CLS] in segment 2.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64

from bertjax.data.characters import Spelling
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Many sequences end to end, so that short ones cost no padding.

    Attributes:
      tokens: All sequences, one after the other.
      starts: Where each begins in `tokens`.
      lengths: How long each is.
      first_lengths: How much of each is the first segment: [CLS] a [SEP].
      pad_id: What fills a batch behind a sequence.
      cls_last: Whether [CLS] ends each.
      columns: Further numbers of each token, by batch key; 0 in padding.
      tables: What the numbers of a column stand for, by batch key: a row of each.
      truncated: Whether each has lost the end of a text; None where that is not recorded.
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

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, examples: Int[np.ndarray, " B"], length: int) -> dict[str, np.ndarray]:
        """The sequences of these examples, padded to `length`: arrays of shape [B, length]."""
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
    tokenizer,
    max_seq_length: int,
    *,
    cls_last: bool = False,
    max_chars_per_word: int = 0,
    truncate: str = "longer",
) -> Pairs:
    """Tokenizes one or two texts an example and puts them together.

    Args:
      texts: One or two lists of equal length.
      tokenizer: An `interfaces.Tokenizer` with [CLS] and [SEP].
      max_seq_length: Longer sequences lose the ends of their texts, the longer text first.
      cls_last: Whether [CLS] ends the sequences.
      max_chars_per_word: Characters of each word, as `char_ids`; 0 for none.
      truncate: Which of two texts loses its end, `longer` or `first`; see `TRUNCATIONS`.

    Raises:
      UserError: the tokenizer has no [CLS] or [SEP], or not even one token of each text would fit.
    """
    budget = room(tokenizer, len(texts), max_seq_length)
    encoded = [_each_once(tokenizer.encode_batch, column) for column in texts]
    sizes = [np.array([len(ids) for ids in column], np.int64) for column in encoded]
    cut = TRUNCATIONS[truncate]
    kept = cut(*sizes, budget) if len(texts) == 2 else [np.minimum(sizes[0], budget)]
    first_lengths = kept[0] + (1 if cls_last else 2)
    lengths = sum(kept) + max_seq_length - budget
    total = int(lengths.sum())
    columns, tables = {}, {}
    if max_chars_per_word:
        spelling = Spelling(tokenizer, max_chars_per_word)
        numbers = [_each_once(spelling.numbers, column) for column in texts]
        ends = spelling.number(tokenizer.cls_id), spelling.number(tokenizer.sep_id)
        spelled = _chained(numbers, kept, *ends, tokenizer.pair_separators, cls_last)
        columns["char_ids"] = np.fromiter(spelled, np.int32, total)
        tables["char_ids"] = spelling.table()
    ends = tokenizer.cls_id, tokenizer.sep_id
    chained = _chained(encoded, kept, *ends, tokenizer.pair_separators, cls_last)
    return Pairs(
        tokens=np.fromiter(chained, np.int32, total),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        first_lengths=first_lengths,
        pad_id=tokenizer.pad_id,
        cls_last=cls_last,
        columns=columns,
        tables=tables,
        truncated=sum(kept) < sum(sizes),
    )


def room(tokenizer, texts: int, max_seq_length: int) -> int:
    """How many tokens of one or two texts a sequence holds, beside [CLS] and [SEP].

    Raises:
      UserError: the tokenizer has no [CLS] or [SEP], or not even one token of each text would fit.
    """
    if tokenizer.cls_id is None or tokenizer.sep_id is None:
        raise UserError("the tokenizer has no [CLS] and [SEP] tokens: classification requires both")
    specials = 2 + (tokenizer.pair_separators if texts == 2 else 0)
    if max_seq_length - specials < texts:
        raise UserError(
            f"max_seq_length={max_seq_length} leaves no room for {texts} text(s): expected at "
            f"least {specials + texts}"
        )
    return max_seq_length - specials


def truncated(
    first: Int64[np.ndarray, " n"], second: Int64[np.ndarray, " n"], budget: int
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """How many tokens of each text are kept so that both fit into `budget`.

    BERT takes away one token at a time from the longer text, from the second where they are
    equally long (`_truncate_seq_pair`); this is where that ends.
    """
    kept_second = np.minimum(second, np.maximum(budget // 2, budget - first))
    return np.minimum(first, budget - kept_second), kept_second


def first_truncated(
    first: Int64[np.ndarray, " n"], second: Int64[np.ndarray, " n"], budget: int
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """How many tokens of each text are kept where the second is whole as long as it fits alone."""
    kept_second = np.minimum(second, budget)
    return np.minimum(first, budget - kept_second), kept_second


TRUNCATIONS = {"longer": truncated, "first": first_truncated}
"""By name, what two texts lose that are too long together."""


def _each_once(encode: Callable[[list[str]], list[list[int]]], texts: list[str]) -> list[list[int]]:
    """What `encode` makes of texts; one that is there many times is read once."""
    different = list(dict.fromkeys(texts))
    made = dict(zip(different, encode(different), strict=True))
    return [made[text] for text in texts]


def _chained(
    encoded: list[list[list[int]]],
    kept: Sequence[np.ndarray],
    cls_id: int,
    sep_id: int,
    pair_separators: int,
    cls_last: bool,
):
    """All tokens of all sequences."""
    cls, sep = (cls_id,), (sep_id,)
    between = sep * pair_separators
    before, after = ((), cls) if cls_last else (cls, ())
    # One after the other, for an article of RACE stands in a dozen sequences.
    columns = [
        map(_beginning, column, sizes.tolist()) for column, sizes in zip(encoded, kept, strict=True)
    ]
    return chain.from_iterable(
        chain(
            before,
            texts[0],
            *chain.from_iterable((between, text) for text in texts[1:]),
            sep,
            after,
        )
        for texts in zip(*columns, strict=True)
    )


def _beginning(ids: list[int], size: int) -> list[int]:
    return ids[:size]
