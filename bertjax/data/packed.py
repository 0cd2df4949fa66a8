"""Windows of one length over the tokens of all documents, for causal language models.

  packed         documents follow each other, a separator before each; a token sees all before it
  packed-apart   likewise, but a document sees itself alone, and its positions begin anew

The separator of a document comes before it and is part of it: it is what the document's first token
is predicted from, and it is predicted from the last token of the document before, which ends there.
Windows share one token, so that every token is predicted once. Nothing is cut at sentences.
"""

import numpy as np
from jaxtyping import Int

from bertjax.data.examples import Corpus, HostBatch
from bertjax.data.layout import Layout, Places
from bertjax.data.random import below, permute, uniforms
from bertjax.data.sentence_table import SentenceTable
from bertjax.errors import UserError

APART = "packed-apart"
FORMATS = ("packed", APART)


class TokenWindows:
    """All windows of a split of a corpus.

    The documents lie end to end in a circle, which is entered at another place in each epoch and
    followed once around.

    Attributes:
      seed: What the entry and the order depend on, beside the epoch.
      max_seq_length: L.
      num_examples: How many there are in an epoch: the same number in each.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        format: str,
        max_seq_length: int,
        seed: int,
        separator: int | None,
        pad_id: int,
    ):
        """Lays the windows out; no record is read.

        Args:
          corpus: One split.
          format: One of `FORMATS`.
          max_seq_length: L; only a corpus that is shorter is padded.
          seed: Any integer.
          separator: The token between documents. Without one they follow each other directly, and
            cannot be kept apart.
          pad_id: Fills up.

        Raises:
          UserError: these do not go together.
        """
        if max_seq_length < 2:
            raise UserError(
                f"max_seq_length={max_seq_length}: nothing is predicted in it; expected 2 or more"
            )
        self._apart = format == APART
        if self._apart and separator is None:
            raise UserError(
                "packed-apart needs a tokenizer with [SEP], </s> or <|endoftext|>, which documents "
                "begin with; this one has none: use packed"
            )
        self.seed, self.max_seq_length = seed, max_seq_length
        self._corpus, self._separator, self._pad_id = corpus, separator, pad_id
        self._layout = Layout(corpus, separated=separator is not None)
        self._size = min(max_seq_length, self._layout.total)
        self._stride = max(self._size - 1, 1)
        self.num_examples = -(-self._layout.total // self._stride)

    def order(self, epoch: int, place: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Which window comes where in an epoch: each once, in random order."""
        return permute(place, self.num_examples, self.seed, "order", epoch)

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds windows of an epoch by number.

        Returns:
          `input_ids` (int32 [n L]), `attention_mask` (bool [n L]), `example_id` (uint32 [n]) and,
          for documents that are kept apart, `pack_ids` and `position_ids` (int32 [n L]).
        """
        example = np.asarray(example, np.int64)
        ids = self._read(self._start(epoch, example))
        there = np.broadcast_to(np.arange(self.max_seq_length) < self._size, ids.shape)
        batch = {"input_ids": ids, "attention_mask": there.copy()}
        batch["example_id"] = example.astype(np.uint32)
        if self._apart:
            batch |= _documents(ids == self._separator, there)
        return batch

    def _start(self, epoch: int, example: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        entry = below(self._layout.total, uniforms(self.seed, "entry", epoch))
        return entry + example * self._stride

    def _read(self, start: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n L"]:
        """The tokens from some positions on; what none overwrites is a separator."""
        layout, end = self._layout, start + self._size
        nothing, capacity = np.zeros(len(start), np.int64), np.full(len(start), self._size)
        records = layout.record_at(start), layout.record_at(end - 1) + 1
        places = Places(start[None], nothing, capacity, *records)
        table = SentenceTable(self._corpus, layout, places, 0, 0)
        ids = np.full((len(start), self.max_seq_length), self._pad_id, np.int32)
        if self._separator is not None:
            ids[:, : self._size] = self._separator
        row = np.arange(len(start))
        begin, end = table.locate(start), table.locate(end)
        table.copy_tokens(row, begin, end, ids.reshape(-1), row * self.max_seq_length)
        return ids


def _documents(starts: np.ndarray, there: np.ndarray) -> HostBatch:
    """Which document of its row each token is of, counted from 1, and where in it."""
    column = np.arange(starts.shape[1])
    begun = np.maximum.accumulate(np.where(starts & there, column, 0), axis=1)
    pack = 1 + np.cumsum(starts & there, axis=1)
    return {
        "pack_ids": np.where(there, pack, 0).astype(np.int32),
        "position_ids": np.where(there, column - begun, 0).astype(np.int32),
    }
