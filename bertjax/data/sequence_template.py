"""Put [CLS] and [SEP] around token sequences: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

The only code that adds special tokens, for pretraining, tasks and inference. A `SequenceTemplate`
makes a `Frame`, which has all special tokens in place; the caller copies the tokens of the segments
into it. Frames are padded to rows of a batch, or ragged: stored end to end, without padding.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32

from bertjax.interfaces import Tokenizer

Lengths = Sequence[Int[np.ndarray, " n"]]
"""Number of tokens of each segment, the first or the second, of each sequence."""


class Frame(NamedTuple):
    """Sequences whose special tokens are in place, and whose segments are still to be written.

    Attributes:
      ids: Token ids of all sequences, one after another.
      starts: Offset of each sequence in `ids`.
      lengths: Length of each sequence, special tokens included.
      first_lengths: Length of the first segment with its special tokens: [CLS] a [SEP].
      segment_starts: Position in its sequence of the first token of each segment.
      cls_positions: Position of [CLS] in each sequence.
    """

    ids: Int32[np.ndarray, " T"]
    starts: Int[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    first_lengths: Int[np.ndarray, " n"]
    segment_starts: tuple[Int[np.ndarray, " n"], ...]
    cls_positions: Int[np.ndarray, " n"]

    def offsets(self, segment: int) -> Int[np.ndarray, " n"]:
        """Returns the offset in `ids` of the first token of a segment of each sequence."""
        return self.starts + self.segment_starts[segment]

    def write(self, segment: int, rows: Iterable[Sequence[int] | Int[np.ndarray, " m"]]) -> None:
        """Writes the tokens of a segment of each sequence.

        Args:
          segment: 0 or 1.
          rows: The tokens of the segment of each sequence, with the lengths given to the frame.
        """
        for start, row in zip(self.offsets(segment).tolist(), rows, strict=True):
            self.ids[start : start + len(row)] = row


class SequenceTemplate(NamedTuple):
    """Special tokens and their order in a sequence.

    Attributes:
      cls_id: [CLS]; None if the tokenizer has none, and sequences lack it.
      sep_id: [SEP], after every segment; None if the tokenizer has none, and sequences lack it.
      pad_id: Padding. It follows the text for every model: XLNet's released models were padded on
        the left, but with relative positions that changes no output.
      cls_last: Whether [CLS] ends a sequence, a [SEP] b [SEP] [CLS], as in XLNet.
      pair_separators: Number of [SEP] between two segments: 2 for RoBERTa, else 1.
    """

    cls_id: int | None
    sep_id: int | None
    pad_id: int
    cls_last: bool = False
    pair_separators: int = 1

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, *, cls_last: bool = False) -> "SequenceTemplate":
        """Returns the template of a tokenizer."""
        ids = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
        return cls(*ids, cls_last, tokenizer.pair_separators)

    def map_ids(self, function: Callable[[int], int]) -> "SequenceTemplate":
        """Returns the template with other ids of [CLS] and [SEP], as for rows of a table."""
        cls_id = None if self.cls_id is None else function(self.cls_id)
        sep_id = None if self.sep_id is None else function(self.sep_id)
        return self._replace(cls_id=cls_id, sep_id=sep_id)

    def num_special_tokens(self, num_segments: int) -> int:
        """Returns the number of special tokens of a sequence of 1 or 2 segments."""
        num_separators = 1 + (num_segments - 1) * self.pair_separators
        return (self.cls_id is not None) + num_separators * (self.sep_id is not None)

    def segment_starts(self, lengths: Lengths) -> tuple[Int[np.ndarray, " n"], ...]:
        """Returns the position in its sequence of the first token of each segment."""
        first = np.full_like(lengths[0], self.cls_id is not None and not self.cls_last)
        if len(lengths) == 1:
            return (first,)
        separators = self.pair_separators if self.sep_id is not None else 0
        return first, first + lengths[0] + separators

    def frame(self, lengths: Lengths) -> Frame:
        """Returns a ragged frame.

        Args:
          lengths: Number of tokens of the first, and of the second segment of each sequence.
        """
        total = self._sequence_lengths(lengths)
        starts = np.cumsum(total) - total
        return self._add_cls(np.full(int(total.sum()), self._fill, np.int32), starts, lengths)

    def frame_rows(
        self, lengths: Lengths, max_seq_length: int
    ) -> tuple[Frame, Bool[np.ndarray, "n L"]]:
        """Returns a frame of padded rows, and their mask, False at padding.

        Args:
          lengths: Number of tokens of the first, and of the second segment of each sequence.
          max_seq_length: L; `frame.ids.reshape(-1, L)` are the rows.
        """
        total = self._sequence_lengths(lengths)
        mask = np.arange(max_seq_length, dtype=np.int32) < total.astype(np.int32)[:, None]
        ids = np.where(mask, np.int32(self._fill), np.int32(self.pad_id))
        starts = np.arange(len(total)) * max_seq_length
        return self._add_cls(ids.reshape(-1), starts, lengths), mask

    @property
    def _fill(self) -> int:
        # Every position that is neither [CLS] nor text is a separator, also those in the gaps
        # between the documents of a segment.
        return self.pad_id if self.sep_id is None else self.sep_id

    def _sequence_lengths(self, lengths: Lengths) -> Int[np.ndarray, " n"]:
        return sum(lengths) + self.num_special_tokens(len(lengths))

    def _add_cls(
        self, ids: Int32[np.ndarray, " T"], starts: Int[np.ndarray, " n"], lengths: Lengths
    ) -> Frame:
        total = self._sequence_lengths(lengths)
        cls_positions = total - 1 if self.cls_last else np.zeros_like(total)
        if self.cls_id is not None:
            ids[starts + cls_positions] = self.cls_id
        segment_starts = self.segment_starts(lengths)
        first_lengths = segment_starts[0] + lengths[0] + (self.sep_id is not None)
        return Frame(ids, starts, total, first_lengths, segment_starts, cls_positions)
