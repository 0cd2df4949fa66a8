"""Whole documents packed into rows by best fit, without attention between them, for masked LMs.

A row is `[CLS] a [SEP] [CLS] b [SEP] ...`, in which every text has its own positions and attends
only to itself. A document that is longer than a row is cut into pieces that fill one, and a shorter
piece at a place that changes with the epoch. The pieces of each size are shuffled in every epoch,
so that the same row never has the same neighbours twice.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data import best_fit
from bertjax.data.format import Corpus, ExampleSpec, HostBatch
from bertjax.data.format import Format as BaseFormat
from bertjax.data.layout import Layout, TextLocations, offsets, ranges
from bertjax.data.random import below, permute, uniforms
from bertjax.data.sentence_table import SentenceTable
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError


class _Pieces(NamedTuple):
    """Pieces of text and where they are in a batch.

    Attributes:
      row: Row of the batch.
      pack: Number in the row, from 1.
      begin: Position in the corpus of the first token.
      length: Number of tokens, without special tokens.
    """

    row: Int[np.ndarray, " P"]
    pack: Int[np.ndarray, " P"]
    begin: Int[np.ndarray, " P"]
    length: Int[np.ndarray, " P"]


class PackedDocuments:
    """All rows of a split of a corpus.

    Attributes:
      seed: Seed of pieces, neighbours and order, together with the epoch.
      max_seq_length: L.
      num_examples: Rows per epoch, the same number in each.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        max_seq_length: int,
        seed: int,
        specials: SequenceTemplate,
        word_starts: Bool[np.ndarray, " V"] | None = None,
        resegment: bool = True,
    ):
        """Plans the rows; does not read records.

        Args:
          corpus: One split.
          max_seq_length: L.
          seed: Any integer.
          specials: The special tokens around every piece.
          word_starts: Whether each token of the vocabulary starts a word; adds `word_starts` to
            batches.
          resegment: Whether each epoch cuts and packs the documents anew.

        Raises:
          UserError: there are no special tokens, or no room between them.
        """
        self.seed, self.max_seq_length = seed, max_seq_length
        self._corpus, self._specials, self._word_starts = corpus, specials, word_starts
        self._resegment, self._num_specials = resegment, specials.num_special_tokens(1)
        self._capacity = max_seq_length - self._num_specials
        self._check()
        self._layout = Layout(corpus)
        self._sizes = np.diff(
            self._layout.document_begin(np.arange(self._layout.num_documents + 1))
        )
        # The last piece of a document is the short one; `_locate` chooses its place.
        self._first_piece = offsets(-(-self._sizes // self._capacity))
        rests = self._sizes - (np.diff(self._first_piece) - 1) * self._capacity
        sizes = np.full(self._first_piece[-1], max_seq_length, np.int32)
        sizes[self._first_piece[1:] - 1] = rests + self._num_specials
        self._by_size = np.argsort(sizes, kind="stable")
        self._counts = np.bincount(sizes, minlength=max_seq_length + 1)
        self._size_begin = offsets(self._counts)
        self._plan = best_fit.plan(self._counts)
        self.num_examples = self._plan.num_rows

    def _check(self) -> None:
        if not self._num_specials:
            raise UserError(
                "format packed-documents requires a tokenizer with [CLS] or [SEP]; use "
                "full-sentences, or another tokenizer"
            )
        if self._capacity < 1:
            raise UserError(
                f"max_seq_length: got {self.max_seq_length}, expected >= {self._num_specials + 1}, "
                "special tokens and text; raise it"
            )

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The numbers of the rows at positions of an epoch, in a random permutation."""
        return permute(rank, self.num_examples, self.seed, "order", epoch)

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds rows of an epoch by number.

        Returns:
          `input_ids`, `segment_ids`, `pack_ids`, `position_ids` (int32 [n L]), `attention_mask`
          (bool [n L]), `example_id` (uint32 [n]) and, where it applies, `word_starts` (bool [n L]).
        """
        example = np.asarray(example, np.int64)
        pieces = self._locate(epoch if self._resegment else 0, example)
        batch = self._assemble(pieces, len(example))
        batch["example_id"] = example.astype(np.uint32)
        return batch

    def _locate(self, epoch: int, example: Int[np.ndarray, " n"]) -> _Pieces:
        """Choose the pieces of rows: the plan determines the sizes, the epoch the pieces."""
        row, place, size, number = self._plan.pieces(example)
        for one in np.unique(size).tolist():
            same = size == one
            count = int(self._counts[one])
            number[same] = permute(number[same], count, self.seed, f"pack {one}", epoch)
        piece = self._by_size[self._size_begin[size] + number]
        return _Pieces(row, place + 1, self._begin(epoch, piece), size - self._num_specials)

    def _begin(self, epoch: int, piece: Int[np.ndarray, " P"]) -> Int[np.ndarray, " P"]:
        """The position of the first token of pieces, of which the short one may be at any place."""
        document = np.searchsorted(self._first_piece, piece, side="right") - 1
        count = self._first_piece[document + 1] - self._first_piece[document]
        number = piece - self._first_piece[document]
        short = count - 1
        if self._resegment:
            short = below(count, uniforms(self.seed, "short piece", epoch, document))
        rest = self._sizes[document] - (count - 1) * self._capacity
        after = np.where(number >= short, rest, 0)  # full pieces after the short one
        offset = np.where(
            number == count - 1, short * self._capacity, number * self._capacity + after
        )
        return self._layout.document_begin(document) + offset

    def _assemble(self, pieces: _Pieces, num_rows: int) -> HostBatch:
        layout, end = self._layout, pieces.begin + pieces.length
        records = layout.record_at(pieces.begin), layout.record_at(end - 1) + 1
        skipped = np.zeros_like(pieces.begin)
        locations = TextLocations(pieces.begin[None], skipped, pieces.length, *records)
        table = SentenceTable(self._corpus, layout, locations, 0, 0)
        index = np.arange(len(pieces.row))
        begin, end = table.locate(pieces.begin), table.locate(end)
        frame = self._specials.frame([pieces.length])
        table.copy_tokens(index, begin, end, frame.ids, frame.offsets(0))
        size = pieces.length + self._num_specials
        # Pieces are ordered by row, so that the frame has the rows end to end.
        row_size = np.bincount(pieces.row, weights=size, minlength=num_rows).astype(np.int64)
        at = ranges(np.arange(num_rows) * self.max_seq_length, row_size)
        put = functools.partial(_put, at=at, shape=(num_rows, self.max_seq_length))
        batch = {
            "input_ids": put(frame.ids, self._specials.pad_id),
            "segment_ids": put(self._segment_ids(frame), 0),
            "pack_ids": put(np.repeat(pieces.pack, size).astype(np.int32), 0),
            "position_ids": put(ranges(np.zeros_like(size), size).astype(np.int32), 0),
        }
        batch["attention_mask"] = batch["pack_ids"] > 0
        if self._word_starts is not None:
            starts = self._word_starts[frame.ids]
            first, stop = table.end_of_sentences_before(begin), table.first_sentence_at(end)
            table.mark_sentences(first, stop, begin, end, starts, frame.offsets(0))
            batch["word_starts"] = put(starts, bool(self._word_starts[self._specials.pad_id]))
        return batch

    def _segment_ids(self, frame) -> Int[np.ndarray, " T"]:
        """Return 2 for [CLS] if it is last, as in XLNet, else 0."""
        segment_ids = np.zeros(len(frame.ids), np.int32)
        if self._specials.cls_id is not None and self._specials.cls_last:
            segment_ids[frame.starts + frame.cls_positions] = 2
        return segment_ids


def _put(values: np.ndarray, fill, *, at: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Put the values of all pieces into padded rows."""
    rows = np.full(shape, fill, values.dtype)
    rows.reshape(-1)[at] = values
    return rows


class Format(BaseFormat):
    """See `PackedDocuments`."""

    options = ("static",)
    packs_documents = True

    @staticmethod
    def examples(spec: ExampleSpec) -> PackedDocuments:
        return PackedDocuments(
            spec.split,
            max_seq_length=spec.max_seq_length,
            seed=spec.seed,
            specials=spec.specials,
            word_starts=spec.word_starts,
            resegment=spec.resegment,
        )
