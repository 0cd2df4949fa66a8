"""Examples of one or two texts, as read from files, before tokenization."""

import dataclasses

import numpy as np
from jaxtyping import Num

from bertjax.data.random import sample


@dataclasses.dataclass(frozen=True)
class SequenceExamples:
    """The examples of a split, in file order.

    Attributes:
      texts: One or two lists of texts.
      labels: int32 class indices, float32 scores or a bool for each class; None for an unlabelled
        split.
      indices: The name of each example in prediction files.
      left_out: Malformed lines that were skipped, as "line 17".
    """

    texts: tuple[list[str], ...]
    labels: Num[np.ndarray, "n *more"] | None
    indices: list[str]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.indices)

    def sample(self, size: int, seed: int) -> "SequenceExamples":
        """Returns `size` random examples, sampled without replacement, in file order."""
        return self.take(sample(len(self), size, seed))

    def take(self, kept: Num[np.ndarray, " m"]) -> "SequenceExamples":
        """Returns the examples with these numbers, in their order."""
        return SequenceExamples(
            texts=tuple([column[i] for i in kept] for column in self.texts),
            labels=None if self.labels is None else self.labels[kept],
            indices=[self.indices[i] for i in kept],
            left_out=self.left_out,
        )
