"""Rows of unequal length, laid end to end."""

import numpy as np
from jaxtyping import Int


def offsets(lengths: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n_and_1"]:
    """Where each row begins, and at the end where the last one ends."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def ranges(
    starts: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " total"]:
    """The numbers start, start + 1 ... of every row, one row after the other."""
    at = offsets(lengths)
    return np.arange(at[-1]) + np.repeat(starts - at[:-1], lengths)
