"""Source and target texts for encoder-decoders, from a corpus of pairs (`corpus/text.py`)."""

import numpy as np
from jaxtyping import Bool, Int

from bertjax.corpus.documents import PAIR_FORMAT
from bertjax.data.format import Corpus, ExampleSpec, HostBatch
from bertjax.data.format import Format as BaseFormat
from bertjax.data.layout import offsets, ranges
from bertjax.data.random import permute
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError


class SourceTargets:
    """All pairs of a split of a corpus, at one length.

    Pairs with an empty text, or with more tokens than a record holds, are left out.

    Attributes:
      seed: Seed of the order, together with the epoch.
      max_seq_length: L of sources and of targets, [SEP] included; longer ones are truncated.
      num_examples: Number of pairs.
    """

    def __init__(
        self, corpus: Corpus, specials: SequenceTemplate, *, max_seq_length: int, seed: int
    ):
        """Finds the pairs; does not read records.

        Raises:
          UserError: the tokenizer has no [SEP], the length is below 2, or there is no pair.
        """
        if specials.sep_id is None:
            raise UserError(
                f"format {PAIR_FORMAT} requires a tokenizer with [SEP] or </s>; use another one"
            )
        if max_seq_length < 2:
            raise UserError(
                f"max_seq_length: got {max_seq_length}, expected >= 2 for {PAIR_FORMAT}; raise it"
            )
        self.seed, self.max_seq_length = seed, max_seq_length
        self._corpus = corpus
        self._specials = specials._replace(cls_id=None)
        whole = np.bincount(corpus.document)[corpus.document] == 1
        self._records = np.flatnonzero(whole & (corpus.sentences == 2))
        self.num_examples = len(self._records)
        if not self.num_examples:
            raise UserError(
                f"the corpus has no pairs: prepare it with --format {PAIR_FORMAT}, or set "
                f"--config.data.text_format={PAIR_FORMAT}"
            )

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The numbers of the pairs at positions of an epoch, in a random permutation."""
        return permute(rank, self.num_examples, self.seed, "order", epoch)

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds examples by number; they are the same in every epoch.

        Returns:
          `input_ids`, `target_ids` (int32 [n L]), `attention_mask`, `target_mask` (bool [n L])
          and `example_id` (uint32 [n], the numbers).
        """
        example = np.asarray(example, np.int64)
        records = self._records[example]
        values = np.frombuffer(b"".join(self._corpus.read(records)), self._corpus.dtype)
        sizes = self._corpus.tokens[records].astype(np.int64)
        begin = offsets(sizes + 2)[:-1]
        first = values[begin + sizes].astype(np.int64)
        input_ids, attention_mask = self._rows(values, begin, first)
        target_ids, target_mask = self._rows(values, begin + first, sizes - first)
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "target_ids": target_ids,
            "target_mask": target_mask,
            "example_id": example.astype(np.uint32),
        }

    def _rows(
        self, values: np.ndarray, begin: Int[np.ndarray, " n"], length: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, "n L"], Bool[np.ndarray, "n L"]]:
        """Texts followed by [SEP], padded, and their masks."""
        length = np.minimum(length, self.max_seq_length - 1)
        frame, mask = self._specials.frame_rows([length], self.max_seq_length)
        frame.ids[ranges(frame.offsets(0), length)] = values[ranges(begin, length)]
        return frame.ids.reshape(mask.shape), mask


class Format(BaseFormat):
    """See `SourceTargets`."""

    @staticmethod
    def examples(spec: ExampleSpec) -> SourceTargets:
        return SourceTargets(
            spec.split, spec.specials, max_seq_length=spec.max_seq_length, seed=spec.seed
        )

    @classmethod
    def random_batch(cls, model, shape, random) -> HostBatch:
        batch = super().random_batch(model, shape, random)
        return batch | {"target_ids": batch["input_ids"], "target_mask": batch["attention_mask"]}
