"""A SentencePiece model in the words of a `tokenizer.json`, which gives the same ids.

What SentencePiece keeps in its model (how text is normalised, scores instead of merges) is written
out as steps of Hugging Face's `tokenizers`. The two libraries choose differently only between
segmentations of equal score, as of a line of dashes.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from bertjax.compat.sequence_template import template
from bertjax.data.tokenizer_definitions import Definition
from bertjax.errors import UserError

_Proto = sentencepiece_model_pb2.ModelProto
_UNIGRAM, _BPE = 1, 2
_USER_DEFINED = 4

_SPACE = "▁"


def definition(model: bytes, tokenizer: Any) -> Definition:
    """Writes out a `spiece.model`.

    Args:
      model: Its content.
      tokenizer: The same as a `Tokenizer`, for its special tokens.

    Raises:
      UserError: the model has what a `tokenizer.json` cannot say.
    """
    parsed = _Proto()
    parsed.ParseFromString(model)
    marks = {"replacement": _SPACE, "prepend_scheme": _prefix(parsed), "split": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(tokenizer, identity) for identity in tokenizer.special_ids],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(parsed)},
        "pre_tokenizer": {"type": "Metaspace", **marks},
        "post_processor": template(tokenizer),
        "decoder": {"type": "Metaspace", **marks},
        "model": _model(parsed),
    }


def _prefix(parsed: _Proto) -> str:
    return "always" if parsed.normalizer_spec.add_dummy_prefix else "never"


def _normalizers(parsed: _Proto) -> list[Definition]:
    spec = parsed.normalizer_spec
    steps: list[Definition] = []
    if spec.precompiled_charsmap:
        text = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": text})
    if spec.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return steps


def _model(parsed: _Proto) -> Definition:
    pieces, trainer = parsed.pieces, parsed.trainer_spec
    if any(piece.type == _USER_DEFINED for piece in pieces):
        raise UserError("a SentencePiece model with user-defined pieces cannot be exported")
    if trainer.model_type == _UNIGRAM:
        return {
            "type": "Unigram",
            "unk_id": trainer.unk_id,
            "vocab": [[piece.piece, piece.score] for piece in pieces],
            "byte_fallback": trainer.byte_fallback,
        }
    if trainer.model_type != _BPE:
        raise UserError("a SentencePiece model of words or characters cannot be exported")
    return {
        "type": "BPE",
        "unk_token": pieces[trainer.unk_id].piece,
        "fuse_unk": True,
        "byte_fallback": trainer.byte_fallback,
        "vocab": {piece.piece: identity for identity, piece in enumerate(pieces)},
        "merges": _merges({piece.piece: piece.score for piece in pieces}),
    }


def _merges(scores: Mapping[str, float]) -> list[Sequence[str]]:
    """Every pair that makes a piece, those of the highest score first, as SentencePiece joins."""
    pairs = [
        (piece[:end], piece[end:])
        for piece in scores
        for end in range(1, len(piece))
        if piece[:end] in scores and piece[end:] in scores
    ]
    return sorted(pairs, key=lambda pair: -scores["".join(pair)])


def _special(tokenizer: Any, identity: int) -> Definition:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content = tokenizer.pieces([identity])[0]
    return {"id": identity, "content": content, **flags, "special": True}
