"""Texts of which a model is to give features: tokens, where they stand, chunks of many texts.

A chunk is what is in memory at a time. Its texts become sequences with the special tokens that the
tokenizer has, [CLS] text [SEP], and features are those of the text's own tokens.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Int, Int32, Int64

from bertjax.data.characters import Spelling
from bertjax.data.pairs import Pairs
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some texts, one after the other.

    Attributes:
      first: The number of the first one.
      pairs: Their sequences, with special tokens.
      begin: Where a text begins in its sequence.
      cls: Where [CLS] stands in each sequence.
      ids: All tokens of all texts, without special ones.
      spans: Which characters of its text each token covers: from, up to.
      counts: How many tokens each text has.
      truncated: The number of texts that have lost their ends.
    """

    first: int
    pairs: Pairs
    begin: int
    cls: Int64[np.ndarray, " n"]
    ids: Int32[np.ndarray, " T"]
    spans: Int32[np.ndarray, "T 2"]
    counts: Int64[np.ndarray, " n"]
    truncated: int

    @property
    def starts(self) -> Int[np.ndarray, " n"]:
        """Where each text begins in `ids`."""
        return np.cumsum(self.counts) - self.counts


@dataclasses.dataclass(frozen=True)
class Reader:
    """From lines of text to chunks.

    Attributes:
      tokenizer: An `interfaces.Tokenizer`.
      max_seq_length: Tokens of a sequence, special ones included.
      truncate: Whether longer texts lose their ends, instead of being refused.
      cls_last: Whether [CLS] ends a sequence.
      max_chars_per_word: Characters of each word, as `char_ids`; 0 for none.
      texts_per_chunk: How many texts are in memory.
    """

    tokenizer: Any
    max_seq_length: int
    truncate: bool = False
    cls_last: bool = False
    max_chars_per_word: int = 0
    texts_per_chunk: int = 1024

    @property
    def room(self) -> int:
        """How many tokens of a text fit."""
        specials = (self.tokenizer.cls_id, self.tokenizer.sep_id)
        return self.max_seq_length - sum(special is not None for special in specials)

    def chunks(self, texts: Iterable[str], source: str) -> Iterator[Chunk]:
        """The chunks of some texts, in order; `source` names these in errors.

        Raises:
          UserError: a text is too long.
        """
        if self.room < 1:
            raise UserError(f"max_seq_length={self.max_seq_length} leaves no room for a token")
        spelling = None
        if self.max_chars_per_word:
            spelling = Spelling(self.tokenizer, self.max_chars_per_word)
        texts, first = iter(texts), 0
        while some := list(itertools.islice(texts, self.texts_per_chunk)):
            yield self._chunk(some, first, source, spelling)
            first += len(some)

    def _chunk(self, texts: list[str], first: int, source: str, spelling: Spelling | None) -> Chunk:
        encoded = [self.tokenizer.encode_with_offsets(text) for text in texts]
        longest = max(range(len(texts)), key=lambda number: len(encoded[number][0]))
        if len(encoded[longest][0]) > self.room and not self.truncate:
            raise UserError(
                f"{source}, line {first + longest + 1}: {len(encoded[longest][0])} tokens, more "
                f"than the {self.room} that are read at a time: cut the text, or have it cut with "
                "--truncate"
            )
        kept = [(ids[: self.room], spans[: self.room]) for ids, spans in encoded]
        counts = np.array([len(ids) for ids, _ in kept], np.int64)
        ends = self.tokenizer.cls_id, self.tokenizer.sep_id
        tokens = [self._surrounded(ids, *ends) for ids, _ in kept]
        lengths = np.array([len(row) for row in tokens], np.int64)
        columns, tables = {}, {}
        if spelling is not None:
            columns["char_ids"], tables["char_ids"] = self._spelled(texts, spelling)
        pairs = Pairs(
            tokens=_joined(tokens),
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            first_lengths=lengths,
            pad_id=self.tokenizer.pad_id,
            cls_last=self.cls_last,
            columns=columns,
            tables=tables,
        )
        spans = np.array(list(itertools.chain.from_iterable(s for _, s in kept)), np.int32)
        return Chunk(
            first=first,
            pairs=pairs,
            begin=int(self.tokenizer.cls_id is not None and not self.cls_last),
            cls=lengths - 1 if self.cls_last else np.zeros(len(texts), np.int64),
            ids=_joined([ids for ids, _ in kept]),
            spans=spans.reshape(-1, 2),
            counts=counts,
            truncated=sum(len(ids) > self.room for ids, _ in encoded),
        )

    def _spelled(self, texts: list[str], spelling: Spelling) -> tuple[np.ndarray, np.ndarray]:
        spelling.forget()
        ends = [
            None if identity is None else spelling.number(identity)
            for identity in (self.tokenizer.cls_id, self.tokenizer.sep_id)
        ]
        rows = [self._surrounded(row[: self.room], *ends) for row in spelling.numbers(texts)]
        return _joined(rows), spelling.table()

    def _surrounded(self, ids: list[int], cls: int | None, sep: int | None) -> list[int]:
        cls, sep = ([] if special is None else [special] for special in (cls, sep))
        return [*ids, *sep, *cls] if self.cls_last else [*cls, *ids, *sep]


def _joined(rows: list[list[int]]) -> Int32[np.ndarray, " T"]:
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32)
