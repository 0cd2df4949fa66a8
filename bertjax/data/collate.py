"""Collate segments into batch arrays: add special tokens, pad, build masks."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.segments import Segment
from bertjax.data.sentence_table import SentenceTable


class Specials(NamedTuple):
    """Ids of special tokens, None for those that a tokenizer does not have.

    With `cls_last`, [CLS] comes after the last segment and has a segment id of its own, as in
    XLNet. Padding comes after the text for every model: XLNet's released models were padded on the
    left, but with relative positions that changes no output.
    """

    cls_id: int | None
    sep_id: int | None
    pad_id: int
    cls_last: bool = False

    @property
    def first_token(self) -> int:
        """Index of the first token of the first segment."""
        return int(self.cls_id is not None and not self.cls_last)

    def count(self, num_segments: int) -> int:
        """Return the number of special tokens of an example with `num_segments` segments."""
        return (self.cls_id is not None) + num_segments * (self.sep_id is not None)


def assemble(
    table: SentenceTable,
    parts: tuple[Segment, ...],
    specials: Specials,
    max_seq_length: int,
    word_starts: Bool[np.ndarray, " V"] | None,
) -> dict[str, np.ndarray]:
    """Assemble batch rows [CLS] A [SEP] or [CLS] A [SEP] B [SEP], followed by padding.

    With `cls_last`: A [SEP] [CLS] or A [SEP] B [SEP] [CLS], where [CLS] has segment id 2.

    Args:
      table: The tokens of the segments.
      parts: One or two segments of each example.
      specials: The special tokens.
      max_seq_length: L.
      word_starts: Whether each token of the vocabulary starts a word; None for no `word_starts` in
        the batch. The first token of a sentence always starts a word: byte-level tokenizers
        recognise a word by the space before it, which the first word of a sentence lacks.

    Returns:
      `input_ids`, `segment_ids` (int32 [n L]), `attention_mask` (bool [n L]) and, if `word_starts`
      is given, `word_starts` (bool [n L]).
    """
    size = len(parts[0].row)
    lengths = [part.length for part in parts]
    length = sum(lengths) + specials.count(len(parts))
    row_at = np.arange(size) * max_seq_length + specials.first_token
    at = [row_at, row_at + lengths[0] + 1][: len(parts)]

    position = np.arange(max_seq_length, dtype=np.int32)
    mask = position < length.astype(np.int32)[:, None]
    # Positions that no token overwrites are separators, also those in the gaps between documents.
    separator = specials.pad_id if specials.sep_id is None else specials.sep_id
    ids = np.where(mask, np.int32(separator), np.int32(specials.pad_id))
    segment_ids = _segment_ids(mask, lengths, specials)
    if specials.cls_id is not None:
        cls = np.arange(size), length - 1 if specials.cls_last else 0
        ids[cls] = specials.cls_id
        segment_ids[cls] = 2 if specials.cls_last else 0
    for part, where in zip(parts, at, strict=True):
        table.copy_tokens(part.row, part.begin, part.end, ids.reshape(-1), where)
    batch = {"input_ids": ids, "segment_ids": segment_ids}
    batch["attention_mask"] = mask
    if word_starts is not None:
        starts = word_starts[ids]
        for part, where in zip(parts, at, strict=True):
            table.mark_sentences(*part[1:], starts.reshape(-1), where)
        batch["word_starts"] = starts
    return batch


def _segment_ids(
    mask: Bool[np.ndarray, "n L"], lengths: list[Int[np.ndarray, " n"]], specials: Specials
) -> Int[np.ndarray, "n L"]:
    """Return 1 for the second segment and the separator after it, else 0."""
    if len(lengths) == 1:
        return np.zeros(mask.shape, np.int32)
    second = (specials.first_token + lengths[0] + 1).astype(np.int32)[:, None]
    return (mask & (np.arange(mask.shape[1], dtype=np.int32) >= second)).astype(np.int32)
