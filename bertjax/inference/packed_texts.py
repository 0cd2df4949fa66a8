"""Batches of texts that share rows, in few shapes for texts of any lengths.

Texts sorted by length need a compiled shape for each of many lengths, or padding. Here rows are
filled by best-fit decreasing and one text does not attend to another (`layers/packed_rows.py`).
The shortest rows have two to four times the mean length of the texts, or half of that for many
texts; longer texts are in rows of twice that length, four times, and so on, which shorter texts
fill. So there are two to five shapes.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from bertjax.data import best_fit
from bertjax.data.layout import ranges
from bertjax.interfaces import Batch
from bertjax.layers.packed_rows import PACKED_TOKENS
from bertjax.tasks.batches import PADDING, Rows
from bertjax.tasks.sequences import Pairs

TEXTS_PER_ROW = 8
"""Maximum number of texts of a row. Batches have arrays for as many, and rows of a multiple of as
many tokens."""
_MIN_LENGTH = 32
_MANY_BATCHES = 32
"""From this number of batches on, the time that shorter rows save exceeds that of compiling them.
Attention takes less time in them."""


class _Placed(NamedTuple):
    """Texts in rows of one length."""

    text: Int[np.ndarray, " n"]
    row: Int[np.ndarray, " n"]
    offset: Int[np.ndarray, " n"]


def batches(
    pairs: Pairs,
    max_seq_length: int,
    *,
    max_rows: int,
    max_tokens: int,
    num_groups: int,
    local_rows: Callable[[int], Rows],
) -> Iterator[tuple[Int[np.ndarray, " B"], Batch]]:
    """Yields (text numbers or PADDING, batch) for `PackedEncoding`: every text once, longest first.

    Args:
      pairs: The texts.
      max_seq_length: Maximum number of tokens of a text.
      max_rows: Maximum number of rows of a batch.
      max_tokens: Maximum number of tokens of a batch with several rows; 0 for no limit.
      num_groups: Number of groups of equally many rows and texts of a batch, one for each device.
      local_rows: From the number of texts of a batch to those that this host builds.
    """
    remaining = np.arange(len(pairs))
    are_many = 0 < _MANY_BATCHES * max_tokens < pairs.lengths.sum()
    shortest = (1 if are_many else 2) * pairs.lengths.mean()
    lengths = _row_lengths(shortest, max_seq_length)
    for length, shorter in zip(lengths, [*lengths[1:], 0], strict=True):
        if not (pairs.lengths[remaining] > shorter).any():
            continue
        limit = min(max_rows, max_tokens // length) if max_tokens else max_rows
        limit = max(1, limit // num_groups) * num_groups
        placed, num_rows = _fill_rows(pairs.lengths, remaining, length, shorter, limit)
        num_rows = max(num_rows, num_groups)
        remaining = np.setdiff1d(remaining, placed.text, assume_unique=True)
        for first in range(0, placed.row.max() + 1, num_rows):
            inside = (placed.row >= first) & (placed.row < first + num_rows)
            some = _Placed(placed.text[inside], placed.row[inside] - first, placed.offset[inside])
            yield _batch(pairs, some, (num_groups, num_rows // num_groups, length), local_rows)


def _row_lengths(shortest: float, max_seq_length: int) -> list[int]:
    """Returns the lengths of rows, longest first: powers of two, and that of the longest text."""
    longest = -(-max_seq_length // TEXTS_PER_ROW) * TEXTS_PER_ROW
    length, found = _MIN_LENGTH, [longest]
    while length < longest:
        if length >= shortest:
            found.insert(1, length)
        length *= 2
    return found


def _fill_rows(
    lengths: Int[np.ndarray, " n"],
    texts: Int[np.ndarray, " r"],
    length: int,
    shorter: int,
    limit: int,
) -> tuple[_Placed, int]:
    """Fills whole batches of rows of `length` tokens, so that all texts above `shorter` are placed.

    Returns:
      The texts of these rows, whose numbers begin with 0, and the number of rows of a batch.
    """
    sizes = lengths[texts]
    row, offset = best_fit.place(sizes, length)
    # Rows of too many texts are split; texts keep their offsets.
    row = row * length + _ranks(row) // TEXTS_PER_ROW
    row = np.unique(row, return_inverse=True)[1]
    required, tokens = np.zeros(row.max() + 1, bool), np.bincount(row, sizes)
    required[row[sizes > shorter]] = True
    # A power of two for few texts, which have one batch.
    num_rows = min(limit, 1 << (len(required) - 1).bit_length())
    kept = -(-required.sum() // num_rows) * num_rows
    number = np.empty(len(required), int)
    number[np.lexsort((-tokens, ~required))] = np.arange(len(required))
    inside = number[row] < kept
    return _Placed(texts[inside], number[row[inside]], offset[inside]), num_rows


def _ranks(keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Returns the number of earlier elements that are equal to each."""
    order = np.argsort(keys, kind="stable")
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(keys)) - np.searchsorted(keys[order], keys[order])
    return ranks


def _batch(
    pairs: Pairs,
    placed: _Placed,
    shape: tuple[int, int, int],
    local_rows: Callable[[int], Rows],
) -> tuple[Int[np.ndarray, " B"], Batch]:
    """Builds the batch of `placed`, of (groups, rows of a group, tokens of a row)."""
    num_groups, num_rows, length = shape
    group = placed.row // num_rows
    member = _ranks(group)
    texts = np.full((num_groups, TEXTS_PER_ROW * num_rows), PADDING)
    texts[group, member] = placed.text
    texts = texts.reshape(-1)
    sizes = pairs.lengths[placed.text]
    packed = np.full(num_groups * num_rows * length, -1, np.int32)
    packed[ranges(placed.row * length + placed.offset, sizes)] = ranges(member * length, sizes)
    rows = local_rows(len(texts))
    # `packed` has no token of padding, which can be any text.
    batch = pairs.rows(np.where(texts == PADDING, placed.text[0], texts)[rows], length)
    return texts, batch | {PACKED_TOKENS: packed.reshape(len(texts), -1)[rows]}
