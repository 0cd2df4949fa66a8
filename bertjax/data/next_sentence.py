"""Next-sentence prediction: assign random second segments by swapping them between examples.

BERT (Devlin et al. 2019, appendix A.2) samples a random document for every example with a random
next sentence, and reuses the replaced text for a later example. Here the examples of an epoch are
shuffled into couples, and every other couple swaps its second segments, both split at the same
fraction of their sentences. So labels are balanced exactly, nearly all text is used once per epoch,
and every example is a function of its index.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.data.random import below, permute, uniforms, unpermute


class Pairings(NamedTuple):
    """The next-sentence label and the partner of n examples.

    Attributes:
      is_random: Whether the second segment is from another example (label 1).
      partner: Index of that example; -1 if it must be sampled by
        `sample_other_documents`.
      split: The fraction of its sentences at which an example is split; equal within a couple.
    """

    is_random: Bool[np.ndarray, " n"]
    partner: Int[np.ndarray, " n"]
    split: Float[np.ndarray, " n"]


def assign_partners(epoch: int, example: Int[np.ndarray, " n"], size: int, seed: int) -> Pairings:
    """Pair `size` examples of an epoch at random, and choose the couples that swap segments."""
    rank = permute(example, size, seed, "couples", epoch)
    is_random = rank % 4 >= 2
    partner = np.full(len(example), -1)
    coupled = np.flatnonzero(is_random & (rank ^ 1 < size))
    partner[coupled] = unpermute(rank[coupled] ^ 1, size, seed, "couples", epoch)
    return Pairings(is_random, partner, uniforms(seed, "split", epoch, rank // 2))


def sample_other_documents(
    epoch: int,
    example: Int[np.ndarray, " n"],
    document: Int[np.ndarray, " n"],
    examples_of_document: Int[np.ndarray, " D_and_1"],
    seed: int,
) -> Int[np.ndarray, " n"]:
    """Sample for every example one of the examples of all other documents, uniformly."""
    begin, end = examples_of_document[document], examples_of_document[document + 1]
    others = examples_of_document[-1] - (end - begin)
    sampled = below(others, uniforms(seed, "elsewhere", epoch, example))
    return np.where(sampled >= begin, sampled + end - begin, sampled)
