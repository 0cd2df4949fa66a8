"""Collate segments into batch arrays: add special tokens, pad, build masks."""

import numpy as np
from jaxtyping import Bool, Int

from bertjax.data.segments import Segment
from bertjax.data.sentence_table import SentenceTable
from bertjax.data.sequence_template import Frame, SequenceTemplate


def assemble(
    table: SentenceTable,
    parts: tuple[Segment, ...],
    specials: SequenceTemplate,
    max_seq_length: int,
    word_starts: Bool[np.ndarray, " V"] | None,
) -> dict[str, np.ndarray]:
    """Assemble batch rows [CLS] A [SEP] or [CLS] A [SEP] B [SEP], followed by padding.

    With `cls_last`: A [SEP] [CLS] or A [SEP] B [SEP] [CLS], where [CLS] has segment id 2.

    Args:
      table: The tokens of the segments.
      parts: One or two segments of each example.
      specials: The special tokens and their order.
      max_seq_length: L.
      word_starts: Whether each token of the vocabulary starts a word; None for no `word_starts` in
        the batch. The first token of a sentence always starts a word: byte-level tokenizers
        recognise a word by the space before it, which the first word of a sentence lacks.

    Returns:
      `input_ids`, `segment_ids` (int32 [n L]), `attention_mask` (bool [n L]) and, if `word_starts`
      is given, `word_starts` (bool [n L]).
    """
    frame, mask = specials.frame_rows([part.length for part in parts], max_seq_length)
    for index, part in enumerate(parts):
        table.copy_tokens(part.row, part.begin, part.end, frame.ids, frame.offsets(index))
    ids = frame.ids.reshape(mask.shape)
    batch = {"input_ids": ids, "segment_ids": _segment_ids(frame, mask, specials)}
    batch["attention_mask"] = mask
    if word_starts is not None:
        starts = word_starts[ids]
        for index, part in enumerate(parts):
            table.mark_sentences(*part[1:], starts.reshape(-1), frame.offsets(index))
        batch["word_starts"] = starts
    return batch


def _segment_ids(
    frame: Frame, mask: Bool[np.ndarray, "n L"], specials: SequenceTemplate
) -> Int[np.ndarray, "n L"]:
    """Return 1 for the second segment and the separator after it, 2 for [CLS] if last, else 0."""
    segment_ids = np.zeros(mask.shape, np.int32)
    if len(frame.segment_starts) == 2:
        second = frame.segment_starts[1].astype(np.int32)[:, None]
        position = np.arange(mask.shape[1], dtype=np.int32)
        segment_ids = (mask & (position >= second)).astype(np.int32)
    if specials.cls_id is not None and specials.cls_last:
        segment_ids[np.arange(len(mask)), frame.cls_positions] = 2
    return segment_ids
