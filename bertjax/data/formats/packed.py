"""Windows of one length over the tokens of all documents, for causal language models.

Documents are concatenated with a separator before each, and a token attends to all tokens before it
in its window; in `packed-apart` a document attends only to itself.

A document's first token is predicted from the separator before it, and the separator from the last
token of the previous document. So every token is predicted exactly once, with separate documents or
not, and no label has to be ignored at a boundary. Consecutive windows share one token for the same
reason. Windows are not aligned with sentences.
"""

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.format import Corpus, ExampleSpec, HostBatch
from bertjax.data.format import Format as BaseFormat
from bertjax.data.layout import Layout, TextLocations
from bertjax.data.random import below, permute, uniforms
from bertjax.data.sentence_table import SentenceTable
from bertjax.errors import UserError


class TokenWindows:
    """All windows of a split of a corpus.

    The concatenated documents form a ring; each epoch starts at another random position of it.

    Attributes:
      seed: Seed of start and order, together with the epoch.
      max_seq_length: L.
      num_examples: Per epoch, the same number in each.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        max_seq_length: int,
        seed: int,
        separator: int | None,
        pad_id: int,
        separate_documents: bool = False,
    ):
        """Locates the windows; does not read records.

        Args:
          corpus: One split.
          max_seq_length: L; only a shorter corpus is padded.
          seed: Any integer.
          separator: The token between documents, None to concatenate them directly.
          pad_id: Padding.
          separate_documents: Whether documents do not attend to each other.

        Raises:
          UserError: the options are incompatible.
        """
        if max_seq_length < 2:
            raise UserError(
                f"max_seq_length: got {max_seq_length}, expected >= 2, an input and a target"
            )
        self._separate = separate_documents
        if separate_documents and separator is None:
            raise UserError(
                "format packed-apart requires a tokenizer with [SEP], </s> or <|endoftext|>; use "
                "packed, or another tokenizer"
            )
        self.seed, self.max_seq_length = seed, max_seq_length
        self._corpus, self._separator, self._pad_id = corpus, separator, pad_id
        self._layout = Layout(corpus, separated=separator is not None)
        self._size = min(max_seq_length, self._layout.total)
        self._stride = max(self._size - 1, 1)
        self.num_examples = -(-self._layout.total // self._stride)

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The numbers of the windows at positions of an epoch, in a random permutation."""
        return permute(rank, self.num_examples, self.seed, "order", epoch)

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds windows of an epoch by number.

        Returns:
          `input_ids` (int32 [n L]), `attention_mask` (bool [n L]), `example_id` (uint32 [n]) and,
          with separate documents, `pack_ids` and `position_ids` (int32 [n L]).
        """
        example = np.asarray(example, np.int64)
        ids = self._read(self._start(epoch, example))
        mask = np.broadcast_to(np.arange(self.max_seq_length) < self._size, ids.shape)
        batch = {"input_ids": ids, "attention_mask": mask.copy()}
        batch["example_id"] = example.astype(np.uint32)
        if self._separate:
            batch |= _locate_documents(ids == self._separator, mask)
        return batch

    def _start(self, epoch: int, example: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        entry = below(self._layout.total, uniforms(self.seed, "entry", epoch))
        return entry + example * self._stride

    def _read(self, start: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n L"]:
        """Reads windows of tokens; positions that no record fills are separators."""
        layout, end = self._layout, start + self._size
        skipped, capacity = np.zeros(len(start), np.int64), np.full(len(start), self._size)
        records = layout.record_at(start), layout.record_at(end - 1) + 1
        locations = TextLocations(start[None], skipped, capacity, *records)
        table = SentenceTable(self._corpus, layout, locations, 0, 0)
        ids = np.full((len(start), self.max_seq_length), self._pad_id, np.int32)
        if self._separator is not None:
            ids[:, : self._size] = self._separator
        row = np.arange(len(start))
        begin, end = table.locate(start), table.locate(end)
        table.copy_tokens(row, begin, end, ids.reshape(-1), row * self.max_seq_length)
        return ids


def _locate_documents(starts: Bool[np.ndarray, "n L"], mask: Bool[np.ndarray, "n L"]) -> HostBatch:
    """Number of each token's document in its row, from 1, and its position in that document."""
    column = np.arange(starts.shape[1])
    document_start = np.maximum.accumulate(np.where(starts & mask, column, 0), axis=1)
    pack = 1 + np.cumsum(starts & mask, axis=1)
    return {
        "pack_ids": np.where(mask, pack, 0).astype(np.int32),
        "position_ids": np.where(mask, column - document_start, 0).astype(np.int32),
    }


class Format(BaseFormat):
    """See `TokenWindows`."""

    separate_documents = False

    @classmethod
    def examples(cls, spec: ExampleSpec) -> TokenWindows:
        return TokenWindows(
            spec.split,
            max_seq_length=spec.max_seq_length,
            seed=spec.seed,
            separator=spec.separator,
            pad_id=spec.specials.pad_id,
            separate_documents=cls.separate_documents,
        )
