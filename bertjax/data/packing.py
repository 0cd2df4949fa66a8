"""Documents as records: which tokens a record holds, and how it is laid out in bytes."""

import numpy as np
from jaxtyping import Int

from bertjax.data.records import INDEX_DTYPE, MAX_RECORD_TOKENS


def pack(
    tokens: Int[np.ndarray, " T"], lengths: Int[np.ndarray, " S"], sizes: Int[np.ndarray, " n"]
) -> tuple[list[bytes], np.ndarray]:
    """Lays documents out as records.

    Args:
      tokens: The ids of all documents, one after another, in the dtype to be stored.
      lengths: How many tokens each sentence has; none is empty.
      sizes: How many sentences each document has; one of none has no record.

    Returns:
      The records and their rows of the index (`INDEX_DTYPE`). A sentence longer than a record is
      cut, and counts as several.
    """
    lengths, sizes = _cut_longest(lengths, sizes)
    stored_lengths, ends = lengths.astype(tokens.dtype), np.cumsum(lengths)
    records, rows, start, first = [], [], 0, 0
    for size in sizes.tolist():
        last, starts_document = first + size, True
        while first < last:
            fitting = int(np.searchsorted(ends, start + MAX_RECORD_TOKENS, side="right"))
            stop = min(fitting, last)
            end = int(ends[stop - 1])
            records.append(tokens[start:end].tobytes() + stored_lengths[first:stop].tobytes())
            rows.append((end - start, stop - first, starts_document))
            start, first, starts_document = end, stop, False
    return records, np.array(rows, INDEX_DTYPE)


def _cut_longest(lengths: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parts sentences that no record can hold into pieces that fill a record, and a rest."""
    pieces = -(-lengths // MAX_RECORD_TOKENS)
    if not (pieces > 1).any():
        return lengths, sizes
    rests = lengths - (pieces - 1) * MAX_RECORD_TOKENS
    document = np.repeat(np.repeat(np.arange(sizes.size), sizes), pieces)
    lengths = np.full(int(pieces.sum()), MAX_RECORD_TOKENS)
    lengths[np.cumsum(pieces) - 1] = rests
    return lengths, np.bincount(document, minlength=sizes.size)
