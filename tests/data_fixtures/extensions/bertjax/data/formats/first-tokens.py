"""The first L tokens of each document, without special tokens."""

import numpy as np
from jaxtyping import Int

from bertjax.data.format import ExampleSpec, HostBatch
from bertjax.data.format import Format as BaseFormat
from bertjax.data.layout import Layout, TextLocations
from bertjax.data.random import permute
from bertjax.data.sentence_table import SentenceTable


class FirstTokens:
    """One example per document, numbered like the documents; see `format.ExampleSource`."""

    def __init__(self, spec: ExampleSpec):
        self.seed, self.max_seq_length = spec.seed, spec.max_seq_length
        self._corpus, self._pad_id = spec.split, spec.specials.pad_id
        self._layout = Layout(spec.split)
        self.num_examples = self._layout.num_documents

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Numbers of the examples at some locations of an epoch: each once, in random order."""
        return permute(rank, self.num_examples, self.seed, "order", epoch)

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds examples by number; they are the same in every epoch."""
        example, layout = np.asarray(example, np.int64), self._layout
        begin = layout.document_begin(example)
        end = np.minimum(layout.document_begin(example + 1), begin + self.max_seq_length)
        records = layout.record_at(begin), layout.record_at(end - 1) + 1
        locations = TextLocations(begin[None], np.zeros_like(begin), end - begin, *records)
        table = SentenceTable(self._corpus, layout, locations, 0, 0)
        ids = np.full((len(example), self.max_seq_length), self._pad_id, np.int32)
        row = np.arange(len(example))
        target = ids.reshape(-1), row * self.max_seq_length
        table.copy_tokens(row, table.locate(begin), table.locate(end), *target)
        mask = np.arange(self.max_seq_length) < (end - begin)[:, None]
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "example_id": example.astype(np.uint32),
        }


class Format(BaseFormat):
    """See `FirstTokens`."""

    @staticmethod
    def examples(spec: ExampleSpec) -> FirstTokens:
        return FirstTokens(spec)
