"""Contract of example formats: a split of a corpus becomes numbered training examples.

`config.data.format = "packed"` is the class `Format` of `data/formats/packed.py`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.layout import RecordSizes
from bertjax.data.sentence_table import RecordReader
from bertjax.data.sequence_template import SequenceTemplate

PAIRS = ("next", "order", "none")
"""The second segment of an example: for NSP ("next"), for SOP ("order"), or none."""

HostBatch = dict[str, np.ndarray]
"""Arrays whose first axis is the batch."""


class Corpus(RecordSizes, RecordReader, Protocol):
    """A split of a prepared corpus: the sizes of its records, and their bytes."""


class ExampleSource(Protocol):
    """Numbered examples: example i of an epoch is a pure function of (seed, epoch, i).

    Attributes:
      seed: Seed of the examples and their order.
      max_seq_length: L, special tokens included.
      num_examples: Per epoch, the same number in each.
    """

    seed: int
    max_seq_length: int
    num_examples: int

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The numbers of the examples at positions of an epoch."""
        ...

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds examples of an epoch by number."""
        ...


_SAMPLE = 256


def mean_tokens(examples: ExampleSource) -> float:
    """Measures the mean number of tokens of an example, without padding, on a sample of them."""
    ranks = np.arange(min(_SAMPLE, examples.num_examples))
    mask = examples.build(0, examples.order(0, ranks))["attention_mask"]
    return float(mask.sum() / len(ranks))


@dataclasses.dataclass(frozen=True)
class ExampleSpec:
    """Arguments of `Format.examples`.

    Attributes:
      split: A split of a corpus, or of the data that `Format.read` returns.
      data: `config.data`.
      seed: Any integer.
      max_seq_length: L, special tokens included.
      batch_size: Rows of a global batch, for formats whose rows continue from step to step.
      specials: [CLS], [SEP] and padding; None for formats without text.
      separator: The token between documents, None if the tokenizer has none.
      word_starts: Whether each token of the vocabulary starts a word; None if no objective reads
        `word_starts`.
      resegment: Whether each epoch cuts and pairs the text anew; false for static masks.
    """

    split: Any
    data: Mapping[str, Any]
    seed: int
    max_seq_length: int
    batch_size: int = 1
    specials: SequenceTemplate | None = None
    separator: int | None = None
    word_starts: Bool[np.ndarray, " V"] | None = None
    resegment: bool = True


class Format:
    """Base class of example formats.

    Attributes:
      options: The supported ones of the options that only some formats have: `pair` and
        `short_seq_prob` of `config.data`, and `static` of objectives.
      reads_text: Whether examples are made of a tokenized corpus; otherwise `read` reads the data.
      rows_continue: Whether row r of a batch continues row r of the previous batch.
      packs_documents: Whether rows have several documents that do not attend to each other, with
        `pack_ids` and `position_ids`, which not all models read (`supports_packing`).
    """

    options: ClassVar[tuple[str, ...]] = ()
    reads_text = True
    rows_continue = False
    packs_documents = False

    @staticmethod
    def examples(spec: ExampleSpec) -> ExampleSource:
        """Builds the examples of a split.

        Raises:
          UserError: the options are incompatible with each other or with the corpus.
        """
        raise NotImplementedError

    @staticmethod
    def read(
        data: Mapping[str, Any], objectives: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Any, Any]:
        """Reads the training and held-out split of a format that does not read text.

        Args:
          data: `config.data`.
          objectives: `config.objectives`.

        Raises:
          UserError: the data does not exist, or does not match the objectives.
        """
        raise NotImplementedError

    @classmethod
    def random_batch(
        cls, model: Mapping[str, Any], shape: tuple[int, int], random: np.random.Generator
    ) -> HostBatch:
        """Builds a batch of random content, for benchmarks and plans without a corpus.

        Args:
          model: `config.model`.
          shape: (B, L).
          random: Generator.
        """
        return {
            "input_ids": random.integers(5, model["vocab_size"], shape, np.int32),
            "segment_ids": np.zeros(shape, np.int32),
            "attention_mask": np.ones(shape, bool),
            "example_id": np.arange(shape[0], dtype=np.uint32),
        }
