"""Next-sentence labels: half of the examples exchange their second segments in pairs.

BERT draws a random document for every example with a random next sentence, and uses the text that
it did not take again later. Here the examples of an epoch are shuffled into couples, of which every
other one exchanges its second segments, both cut at the same share of their sentences. So labels
are balanced exactly, nearly all text is used once an epoch, and each example is known from its
number alone.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bertjax.data.random import below, permute, uniforms, unpermute


class Pairings(NamedTuple):
    """What some examples have to do with others.

    Attributes:
      is_random: Whether the second segment is another example's.
      partner: The example that gives it; -1 where it has to be drawn.
      split: The share of its sentences at which an example is split; equal for both of a couple.
    """

    is_random: Bool[np.ndarray, " n"]
    partner: Int[np.ndarray, " n"]
    split: Float[np.ndarray, " n"]


def couples(epoch: int, example: Int[np.ndarray, " n"], size: int, seed: int) -> Pairings:
    """Finds out who exchanges with whom among `size` examples of an epoch."""
    place = permute(example, size, seed, "couples", epoch)
    is_random = place % 4 >= 2
    partner = np.full(len(example), -1)
    coupled = np.flatnonzero(is_random & (place ^ 1 < size))
    partner[coupled] = unpermute(place[coupled] ^ 1, size, seed, "couples", epoch)
    return Pairings(is_random, partner, uniforms(seed, "split", epoch, place // 2))


def draw_elsewhere(
    epoch: int,
    example: Int[np.ndarray, " n"],
    document: Int[np.ndarray, " n"],
    examples_of_document: Int[np.ndarray, " D_and_1"],
    seed: int,
) -> Int[np.ndarray, " n"]:
    """Draws, for every example, one of those of all other documents, all equally likely."""
    begin, end = examples_of_document[document], examples_of_document[document + 1]
    others = examples_of_document[-1] - (end - begin)
    drawn = below(others, uniforms(seed, "elsewhere", epoch, example))
    return np.where(drawn >= begin, drawn + end - begin, drawn)
