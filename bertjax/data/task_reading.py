"""How a model wants the examples of a task: what all kinds of tasks have in common."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from jaxtyping import Num

from bertjax.constraints import AnyText, PositiveInt
from bertjax.data.pair_batches import PairBatches
from bertjax.data.pairs import Pairs


class DataFields:
    """`config.data` of any fine-tuning; a file of `datasets/` adds those of its task.

    Attributes:
      max_seq_length: Tokens of the longest sequence.
      batch_size: Sequences of a training step.
      microbatches: Parts in which a step takes these.
      eval_batch_size: Sequences at a time where nothing is trained.
      padded_lengths: Shorter lengths to which batches of short sequences are padded.
      batches_per_group: Batches among which sequences are sorted by length; 1: none are.
      fingerprint: Of the data; the run writes it.
    """

    max_seq_length: PositiveInt
    batch_size: PositiveInt
    microbatches: PositiveInt
    eval_batch_size: PositiveInt
    padded_lengths: tuple[PositiveInt, ...]
    batches_per_group: PositiveInt
    fingerprint: AnyText


class Examples(Protocol):
    """A split, before it is tokens."""

    def __len__(self) -> int: ...

    def sample(self, size: int, seed: int) -> "Examples": ...


@dataclasses.dataclass(frozen=True)
class Asked:
    """Examples that a person gives, of which nobody knows the answers.

    Attributes:
      batches: What the model reads.
      answers: From its predictions, one of each sequence, to what is said of every example.
    """

    batches: PairBatches
    answers: Callable[[np.ndarray], list[dict[str, Any]]]


AnyExamples = TypeVar("AnyExamples", bound=Examples)


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a recipe and a model say of sequences and batches.

    Attributes:
      tokenizer: An `interfaces.Tokenizer`.
      max_seq_length: L, special tokens included.
      cls_last: Whether [CLS] ends a sequence.
      max_chars_per_word: Characters of each word, for models that read these; else 0.
      takes_positions: Whether the model can be told where tokens stand.
      batch_size: Sequences of a training batch.
      eval_batch_size: Sequences of a batch that is evaluated.
      padded_lengths: Lengths of batches that are shorter than `max_seq_length`.
      batches_per_group: Batches among which sequences are sorted by length.
      max_train_examples: So many, drawn with `seed`, are trained on; 0 for all.
      seed: Of the draw and of the shuffles.
    """

    tokenizer: Any
    max_seq_length: int
    cls_last: bool
    max_chars_per_word: int
    takes_positions: bool
    batch_size: int
    eval_batch_size: int
    padded_lengths: tuple[int, ...]
    batches_per_group: int
    max_train_examples: int
    seed: int

    def drawn(self, split: str, examples: AnyExamples) -> AnyExamples:
        """What is read of a split."""
        if split != "train" or not self.max_train_examples:
            return examples
        return examples.sample(self.max_train_examples, self.seed)

    def batches(
        self,
        split: str,
        sequences: Pairs,
        labels: Num[np.ndarray, "n *more"] | None,
        together: int = 1,
    ) -> PairBatches:
        """The batches of a split, of training or of evaluation.

        Args:
          split: Its name.
          sequences: Encoded.
          labels: One for each sequence, or None.
          together: Sequences that follow each other and are never parted.
        """
        shorter = [length for length in self.padded_lengths if length < self.max_seq_length]
        return PairBatches(
            pairs=sequences,
            labels=labels,
            batch_size=self.batch_size if split == "train" else self.eval_batch_size,
            padded_lengths=(*shorter, self.max_seq_length),
            batches_per_group=self.batches_per_group,
            seed=self.seed,
            together=together,
        )
