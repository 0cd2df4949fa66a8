"""Stream documents from beginning to end: one piece per step in each row of the batch.

For models that remember the piece before. Pieces are cut at tokens, not at sentences, and overlap
nowhere: nothing that is predicted was remembered before. The documents of an epoch, in random
order, lie end to end, and each row reads its own equal part of them. Which piece comes at which
step is known without any of the steps before it.
"""

import functools

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.collate import Specials, assemble
from bertjax.data.examples import Corpus, HostBatch
from bertjax.data.layout import Layout, Places, offsets
from bertjax.data.random import below, permute, uniforms
from bertjax.data.segments import Segment
from bertjax.data.sentence_table import SentenceTable
from bertjax.errors import UserError

FORMATS = ("stream", "stream-pair")
"""One segment; or two, divided at a random token, of which the second follows the first."""


class Streams:
    """All pieces of a split of a corpus, for batches of one size.

    Example r * S + s of an epoch is what row r reads at step s, where an epoch has S steps. A
    document is cut elsewhere in each epoch: all pieces but its first and its last are full. The
    few pieces that do not fill another step are left out, others in each epoch.

    Attributes:
      seed: What the order and the cuts depend on, beside the epoch.
      max_seq_length: L, special tokens included.
      num_examples: How many there are in an epoch: the same number in each.
    """

    def __init__(
        self,
        corpus: Corpus,
        specials: Specials,
        *,
        format: str,
        max_seq_length: int,
        batch_size: int,
        seed: int,
        word_starts: Bool[np.ndarray, " V"] | None = None,
    ):
        """Lays the pieces out; no record is read.

        Args:
          corpus: One split.
          specials: What stands around text.
          format: One of `FORMATS`.
          max_seq_length: L; shorter pieces are padded.
          batch_size: Rows of a global batch.
          seed: Any integer.
          word_starts: Which tokens begin a word: asks for `word_starts` in the batches.

        Raises:
          UserError: these do not go together, or the corpus is too small for them.
        """
        self.seed, self.max_seq_length, self.batch_size = seed, max_seq_length, batch_size
        self._corpus, self._specials, self._word_starts = corpus, specials, word_starts
        self._paired = format == "stream-pair"
        self._capacity = max_seq_length - specials.count(2 if self._paired else 1)
        if self._capacity < 2:
            raise UserError(
                f"max_seq_length={max_seq_length} leaves {self._capacity} tokens beside the "
                f"special ones; {format} needs 2 or more: raise it"
            )
        self._layout = Layout(corpus)
        self._begin = self._layout.document_begin(np.arange(self._layout.num_documents + 1))
        self._sizes = np.diff(self._begin)
        self._pieces = -(-self._sizes // self._capacity)
        self.steps_per_epoch = int(self._pieces.sum()) // batch_size
        self.num_examples = self.steps_per_epoch * batch_size
        if not self.num_examples:
            raise UserError(
                f"an epoch has {self._pieces.sum()} pieces of {max_seq_length} tokens, fewer than "
                f"batch_size={batch_size}: lower batch_size or prepare a larger corpus"
            )

    def order(self, epoch: int, place: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Which example comes where in an epoch: rows continue with what they read."""
        step, row = np.divmod(place, self.batch_size)
        return row * self.steps_per_epoch + step

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds examples of an epoch by number.

        Returns:
          What `Examples.build` gives, `memory_mask` (bool [n L]): the tokens of the text, and
          `is_continuation` (bool [n]): whether the row's step before had the piece before.
        """
        example = np.asarray(example, np.int64)
        document, piece = self._find(epoch, example)
        most_moved = self._pieces[document] * self._capacity - self._sizes[document]
        moved = below(most_moved + 1, uniforms(self.seed, "shift", epoch, document))
        start = piece * self._capacity - moved
        begin = self._begin[document] + np.maximum(start, 0)
        end = np.minimum(self._begin[document] + start + self._capacity, self._begin[document + 1])
        table, text = self._read(begin, end)
        parts = self._divided(epoch, example, text) if self._paired else (text,)
        batch = assemble(table, parts, self._specials, self.max_seq_length, self._word_starts)
        batch["example_id"] = example.astype(np.uint32)
        batch["memory_mask"] = self._is_text(parts)
        batch["is_continuation"] = (piece > 0) & (example % self.steps_per_epoch > 0)
        return batch

    def _find(
        self, epoch: int, example: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The document that each example is of, and which of its pieces it is."""
        documents, begin = self._epoch(epoch)
        at = np.searchsorted(begin, example, side="right") - 1
        return documents[at], example - begin[at]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - examples live as long as the run
    def _epoch(self, epoch: int) -> tuple[Int[np.ndarray, " D"], Int[np.ndarray, " D_and_1"]]:
        """The documents in the order of an epoch, and where the pieces of each begin."""
        numbers = np.arange(self._layout.num_documents)
        documents = permute(numbers, len(numbers), self.seed, "documents", epoch)
        return documents, offsets(self._pieces[documents])

    def _read(
        self, begin: Int[np.ndarray, " n"], end: Int[np.ndarray, " n"]
    ) -> tuple[SentenceTable, Segment]:
        """Reads the tokens between some positions of the corpus."""
        skipped, capacity = np.zeros(len(begin), np.int64), np.full(len(begin), self._capacity)
        records = self._layout.record_at(begin), self._layout.record_at(end - 1) + 1
        places = Places(begin[None], skipped, capacity, *records)
        table = SentenceTable(self._corpus, self._layout, places, 0, 0)
        return table, _between(table, table.locate(begin), table.locate(end))

    def _divided(
        self, epoch: int, example: Int[np.ndarray, " n"], text: Segment
    ) -> tuple[Segment, Segment]:
        draws = uniforms(self.seed, "divide", epoch, example)
        middle = text.begin + 1 + below(np.maximum(text.length - 1, 1), draws)
        return text._replace(end=middle), text._replace(begin=middle)

    def _is_text(self, parts: tuple[Segment, ...]) -> Bool[np.ndarray, "n L"]:
        at = np.arange(self.max_seq_length)
        begin = np.full((len(parts[0].row), 1), self._specials.first_token)
        text = np.zeros((len(begin), self.max_seq_length), bool)
        for part in parts:
            text |= (at >= begin) & (at < begin + part.length[:, None])
            begin = begin + part.length[:, None] + (self._specials.sep_id is not None)
        return text


def _between(
    table: SentenceTable, begin: Int[np.ndarray, " n"], end: Int[np.ndarray, " n"]
) -> Segment:
    row = np.arange(len(begin))
    return Segment(row, table.first_from(begin), table.first_from(end), begin, end)
