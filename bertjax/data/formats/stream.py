"""Consecutive segments of documents, one per step in each row, for models with a memory.

Segments are cut at tokens, not at sentences, and do not overlap, so that the memory never contains
a predicted token (Transformer-XL, XLNet). The documents of an epoch are concatenated in random
order, and each row reads an equal part of them. The segment of any step is computed in O(log n)
without the steps before it.
"""

import functools

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.format import Corpus, ExampleSpec, HostBatch
from bertjax.data.format import Format as BaseFormat
from bertjax.data.layout import Layout, TextLocations, offsets
from bertjax.data.random import below, permute, uniforms
from bertjax.data.segments import Segment, assemble
from bertjax.data.sentence_table import SentenceTable
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError


class Streams:
    """All segments of a split of a corpus, for one batch size.

    Example r * S + s of an epoch with S steps is the input of row r at step s. Each epoch cuts a
    document at different positions: all segments but its first and its last are full. Segments
    that do not fill a whole step are left out, different ones in each epoch.

    Attributes:
      seed: Seed of order and cuts, together with the epoch.
      max_seq_length: L, special tokens included.
      num_examples: Per epoch, the same number in each.
    """

    def __init__(
        self,
        corpus: Corpus,
        specials: SequenceTemplate,
        *,
        max_seq_length: int,
        batch_size: int,
        seed: int,
        num_segments: int = 1,
        word_starts: Bool[np.ndarray, " V"] | None = None,
    ):
        """Locates the segments; does not read records.

        Args:
          corpus: One split.
          specials: [CLS], [SEP] and padding.
          max_seq_length: L; shorter segments are padded.
          batch_size: Rows of a global batch.
          seed: Any integer.
          num_segments: 1; or 2, divided at a random token.
          word_starts: Whether each token of the vocabulary starts a word; adds `word_starts` to
            batches.

        Raises:
          UserError: the options are incompatible, or the corpus is too small.
        """
        self.seed, self.max_seq_length, self.batch_size = seed, max_seq_length, batch_size
        self._corpus, self._specials, self._word_starts = corpus, specials, word_starts
        self._paired = num_segments == 2
        self._capacity = max_seq_length - specials.num_special_tokens(num_segments)
        if self._capacity < 2:
            raise UserError(
                f"max_seq_length: got {max_seq_length}, which leaves {self._capacity} tokens for "
                "text, expected >= 2; raise it"
            )
        self._layout = Layout(corpus)
        self._begin = self._layout.document_begin(np.arange(self._layout.num_documents + 1))
        self._sizes = np.diff(self._begin)
        self._pieces = -(-self._sizes // self._capacity)
        self.steps_per_epoch = int(self._pieces.sum()) // batch_size
        self.num_examples = self.steps_per_epoch * batch_size
        if not self.num_examples:
            raise UserError(
                f"an epoch has {self._pieces.sum()} segments of {max_seq_length} tokens, expected "
                f">= batch_size={batch_size}; lower batch_size or prepare a larger corpus"
            )

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The numbers of the examples at positions of an epoch: each row continues its text."""
        step, row = np.divmod(rank, self.batch_size)
        return row * self.steps_per_epoch + step

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds examples of an epoch by number.

        Returns:
          The keys of `Examples.build`, `memory_mask` (bool [n L]): tokens of the text, and
          `is_continuation` (bool [n]): whether the row continues its segment of the last step.
        """
        example = np.asarray(example, np.int64)
        document, piece = self._find(epoch, example)
        max_shift = self._pieces[document] * self._capacity - self._sizes[document]
        shift = below(max_shift + 1, uniforms(self.seed, "shift", epoch, document))
        start = piece * self._capacity - shift
        begin = self._begin[document] + np.maximum(start, 0)
        end = np.minimum(self._begin[document] + start + self._capacity, self._begin[document + 1])
        table, text = self._read(begin, end)
        parts = self._split_segments(epoch, example, text) if self._paired else (text,)
        batch = assemble(table, parts, self._specials, self.max_seq_length, self._word_starts)
        batch["example_id"] = example.astype(np.uint32)
        batch["memory_mask"] = self._is_text(parts)
        batch["is_continuation"] = (piece > 0) & (example % self.steps_per_epoch > 0)
        return batch

    def _find(
        self, epoch: int, example: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The document of each example, and the number of its segment in it."""
        documents, begin = self._document_order(epoch)
        at = np.searchsorted(begin, example, side="right") - 1
        return documents[at], example - begin[at]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - examples live as long as the run
    def _document_order(
        self, epoch: int
    ) -> tuple[Int[np.ndarray, " D"], Int[np.ndarray, " D_and_1"]]:
        """The documents in the order of an epoch, and the number of each one's first segment."""
        numbers = np.arange(self._layout.num_documents)
        documents = permute(numbers, len(numbers), self.seed, "documents", epoch)
        return documents, offsets(self._pieces[documents])

    def _read(
        self, begin: Int[np.ndarray, " n"], end: Int[np.ndarray, " n"]
    ) -> tuple[SentenceTable, Segment]:
        """Reads the tokens between positions of the corpus."""
        skipped, capacity = np.zeros(len(begin), np.int64), np.full(len(begin), self._capacity)
        records = self._layout.record_at(begin), self._layout.record_at(end - 1) + 1
        locations = TextLocations(begin[None], skipped, capacity, *records)
        table = SentenceTable(self._corpus, self._layout, locations, 0, 0)
        return table, _make_segments(table, table.locate(begin), table.locate(end))

    def _split_segments(
        self, epoch: int, example: Int[np.ndarray, " n"], text: Segment
    ) -> tuple[Segment, Segment]:
        uniform = uniforms(self.seed, "divide", epoch, example)
        middle = text.begin + 1 + below(np.maximum(text.length - 1, 1), uniform)
        return text._replace(end=middle), text._replace(begin=middle)

    def _is_text(self, parts: tuple[Segment, ...]) -> Bool[np.ndarray, "n L"]:
        position = np.arange(self.max_seq_length)
        lengths = [part.length for part in parts]
        text = np.zeros((len(lengths[0]), self.max_seq_length), bool)
        for start, length in zip(self._specials.segment_starts(lengths), lengths, strict=True):
            text |= (position >= start[:, None]) & (position < (start + length)[:, None])
        return text


def _make_segments(
    table: SentenceTable, begin: Int[np.ndarray, " n"], end: Int[np.ndarray, " n"]
) -> Segment:
    row = np.arange(len(begin))
    return Segment(row, table.first_sentence_at(begin), table.first_sentence_at(end), begin, end)


class Format(BaseFormat):
    """See `Streams`."""

    rows_continue = True
    num_segments = 1

    @classmethod
    def examples(cls, spec: ExampleSpec) -> Streams:
        return Streams(
            spec.split,
            spec.specials,
            max_seq_length=spec.max_seq_length,
            batch_size=spec.batch_size,
            seed=spec.seed,
            num_segments=cls.num_segments,
            word_starts=spec.word_starts,
        )

    @classmethod
    def random_batch(cls, model, shape, random) -> HostBatch:
        batch = super().random_batch(model, shape, random)
        memory = {
            "memory_mask": batch["attention_mask"],
            "is_continuation": np.ones(shape[0], bool),
        }
        return batch | memory
