"""Best-fit packing: put pieces of text of known sizes into as few rows as possible.

The plan is best-fit decreasing (Ding et al. 2024, "Fewer truncations improve language modeling"),
computed on the number of pieces of each size, as Krell et al. 2021 do for BERT ("Efficient sequence
packing without cross-contamination", section 3.1): it costs the same for any number of pieces.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from bertjax.data.layout import offsets


class _Bins(NamedTuple):
    """Rows with equal content."""

    sizes: tuple[int, ...]
    count: int


class Pieces(NamedTuple):
    """The pieces of some rows, row by row.

    Attributes:
      row: Index of the row among these rows.
      place: Place in the row, from 0.
      size: Size in tokens.
      number: Number among all pieces of this size in the plan.
    """

    row: Int[np.ndarray, " P"]
    place: Int[np.ndarray, " P"]
    size: Int[np.ndarray, " P"]
    number: Int[np.ndarray, " P"]


class Plan(NamedTuple):
    """The sizes of the pieces in each row; rows of one composition are consecutive.

    Attributes:
      starts: First row of each composition, followed by the number of rows.
      sizes: Sizes of the pieces of each composition, in their order in a row; 0 for none.
      first: For each of these pieces, its number among all pieces of its size in the plan, in the
        first row of the composition.
      step: Number of pieces of its size in a row.
    """

    starts: Int[np.ndarray, " C_and_1"]
    sizes: Int[np.ndarray, "C K"]
    first: Int[np.ndarray, "C K"]
    step: Int[np.ndarray, "C K"]

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def pieces(self, rows: Int[np.ndarray, " n"]) -> Pieces:
        """Returns the pieces of rows with these numbers."""
        composition = np.searchsorted(self.starts, rows, side="right") - 1
        sizes = self.sizes[composition]
        row, place = np.nonzero(sizes)
        repetition = (rows - self.starts[composition])[row]
        number = self.first[composition][row, place]
        number += repetition * self.step[composition][row, place]
        return Pieces(row, place, sizes[row, place], number)


def plan(counts: Int[np.ndarray, " L_and_1"]) -> Plan:
    """Plan the rows of L tokens for `counts[s]` pieces of each size s from 1 to L."""
    length = len(counts) - 1
    by_capacity: dict[int, list[_Bins]] = {}
    for size in range(length, 0, -1):
        _place(size, int(counts[size]), length, by_capacity)
    return _to_plan([bins for capacity in sorted(by_capacity) for bins in by_capacity[capacity]])


def place(
    sizes: Int[np.ndarray, " n"], length: int
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Places pieces of these sizes into rows of `length` tokens.

    Returns:
      The row of each piece, and its offset in the row.
    """
    counts = np.bincount(sizes, minlength=length + 1)
    planned = plan(counts)
    pieces = planned.pieces(np.arange(planned.num_rows))
    index = np.argsort(sizes, kind="stable")[offsets(counts)[pieces.size] + pieces.number]
    before = offsets(pieces.size)[:-1]
    rows, starts = np.zeros((2, len(sizes)), np.int64)
    rows[index] = pieces.row
    starts[index] = before - before[np.searchsorted(pieces.row, pieces.row)]
    return rows, starts


def _place(size: int, count: int, length: int, by_capacity: dict[int, list[_Bins]]) -> None:
    """Put pieces of one size into the rows with the least free space that fits, or new rows."""
    capacities = sorted(capacity for capacity in by_capacity if capacity >= size)
    while count:
        capacity = capacities[0] if capacities else length
        bins = by_capacity[capacity].pop() if capacities else _Bins((), count)
        if capacities and not by_capacity[capacity]:
            del by_capacity[capacity]
            del capacities[0]
        # A row that got a piece has the least free space for the next piece of the same size.
        fitting = capacity // size
        full = min(bins.count, count // fitting)
        rest = min(count - full * fitting, fitting) if full < bins.count else 0
        for pieces, number in ((fitting, full), (rest, 1)):
            if pieces and number:
                filled = _Bins((*bins.sizes, *(size,) * pieces), number)
                by_capacity.setdefault(capacity - pieces * size, []).append(filled)
        unused = bins.count - full - (rest > 0)
        if unused and bins.sizes:
            by_capacity.setdefault(capacity, []).append(bins._replace(count=unused))
        count -= full * fitting + rest


def _to_plan(rows: list[_Bins]) -> Plan:
    shape = len(rows), max((len(bins.sizes) for bins in rows), default=0)
    sizes, first, step = (np.zeros(shape, np.int64) for _ in range(3))
    used: dict[int, int] = {}
    for number, bins in enumerate(rows):
        ranks: dict[int, int] = {}
        for at, size in enumerate(bins.sizes):
            rank = ranks.get(size, 0)
            sizes[number, at], first[number, at] = size, used.get(size, 0) + rank
            step[number, at] = bins.sizes.count(size)
            ranks[size] = rank + 1
        for size, many in ranks.items():
            used[size] = used.get(size, 0) + many * bins.count
    return Plan(offsets(np.array([bins.count for bins in rows], np.int64)), sizes, first, step)
