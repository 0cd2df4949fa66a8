"""Sequences of ColBERT: markers of queries and documents, and padding of queries with [MASK].

Khattab and Zaharia 2020, section 3.2: a query is [CLS] [Q] text [SEP] [MASK] ..., a document [CLS]
[D] text [SEP], whose punctuation is not compared. As in the released code, the markers are the
tokens [unused0] and [unused1] of BERT's vocabularies; without them there are no markers. Tokens
[MASK] are attended to, as in the paper; the released code does not attend to them.
"""

import dataclasses
import string
from collections.abc import Sequence

import numpy as np

from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.tasks.dataset import EncodingSpec
from bertjax.tasks.sequences import Pairs

QUERY, DOCUMENT = 1, 2
"""Values of `token_kinds`; 0 for padding and for the punctuation of documents."""
_MARKERS = ("[unused0]", "[unused1]")
_MIN_LENGTH = 4


@dataclasses.dataclass(frozen=True)
class SequenceEncoder:
    """Encodes queries and documents.

    Attributes:
      tokenizer: Tokenizer of the model.
      query_length: Tokens of every query.
      max_seq_length: Maximum number of tokens of a document.
      markers: Ids of [Q] and [D], or none.
      punctuation: Ids of tokens that are not compared.
    """

    tokenizer: Tokenizer
    query_length: int
    max_seq_length: int
    markers: tuple[int, ...]
    punctuation: frozenset[int]

    def encode(self, texts: Sequence[str], is_query: Sequence[bool]) -> Pairs:
        """Returns a sequence for each text; longer ones are truncated."""
        template = SequenceTemplate.from_tokenizer(self.tokenizer)
        num_special = template.num_special_tokens(1)
        segments, limits, truncated = [], [], []
        for ids, query in zip(self.tokenizer.encode_batch(list(texts)), is_query, strict=True):
            segment = [*(self.markers[:1] if query else self.markers[1:]), *ids]
            limit = self.query_length if query else self.max_seq_length
            segments.append(segment[: limit - num_special])
            limits.append(limit)
            truncated.append(len(segment) > limit - num_special)
        frame = template.frame([np.array([len(segment) for segment in segments])])
        frame.write(0, segments)
        rows, kinds = np.split(frame.ids, frame.starts[1:]), []
        for number, query in enumerate(is_query):
            if query:
                num_masks = limits[number] - len(rows[number])
                rows[number] = np.append(rows[number], [self.tokenizer.mask_id] * num_masks)
            kinds.append([self._kind(token, query=query) for token in rows[number].tolist()])
        lengths = np.array([len(row) for row in rows], np.int64)
        return Pairs(
            tokens=np.concatenate(rows).astype(np.int32),
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            first_lengths=lengths,
            pad_id=self.tokenizer.pad_id,
            columns={"token_kinds": np.concatenate(kinds).astype(np.int32)},
            truncated=np.array(truncated),
        )

    def _kind(self, token: int, *, query: bool) -> int:
        return QUERY if query else DOCUMENT * (token not in self.punctuation)


def make_encoder(spec: EncodingSpec, query_length: int) -> SequenceEncoder:
    """Returns the encoder of a model.

    Args:
      spec: Tokenizer and length of documents.
      query_length: Tokens of a query.

    Raises:
      UserError: the tokenizer or the model does not fit, or a length is too small.
    """
    tokenizer = spec.tokenizer
    if None in (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id):
        raise UserError(
            "the tokenizer has no [CLS], [SEP] and [MASK]: colbert requires all three; use a "
            "tokenizer that has them"
        )
    if spec.cls_last or spec.max_chars_per_word:
        raise UserError(
            "colbert: got a model with [CLS] at the end or with characters as input, expected one "
            "of tokens with [CLS] first, such as bert"
        )
    if not _MIN_LENGTH <= query_length <= spec.max_seq_length:
        raise UserError(
            f"config.task.query_length: got {query_length}, expected {_MIN_LENGTH} to "
            f"{spec.max_seq_length}, config.data.max_seq_length"
        )
    pieces = tokenizer.ids_to_pieces(range(tokenizer.vocab_size))
    numbers = {piece: number for number, piece in enumerate(pieces) if piece in _MARKERS}
    markers = tuple(numbers[name] for name in _MARKERS) if len(numbers) == 2 else ()
    marks = tokenizer.encode_batch(list(string.punctuation))
    punctuation = {ids[0] for ids in marks if len(ids) == 1} - {tokenizer.unk_id}
    return SequenceEncoder(
        tokenizer, query_length, spec.max_seq_length, markers, frozenset(punctuation)
    )
