"""Write the tokenizer of an exported model: `tokenizer.json` and the config of AutoTokenizer.

The class is always `PreTrainedTokenizerFast`, which follows `tokenizer.json`. Classes of
transformers named after models build a tokenizer from the vocabulary alone, with a fixed
normalisation of the text, and give other ids if this tokenizer has another one.

A SentencePiece model is converted to components of Hugging Face's `tokenizers` (normalisation,
scores instead of merges) that give the same ids, except between segmentations of equal score.
"""

import base64
import math
import pathlib
import tempfile
from collections.abc import Mapping, Sequence

from sentencepiece import sentencepiece_model_pb2

from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.io.files import read_json, write_hf_json
from bertjax.tokenizers.definitions import Definition, with_space_in_mask
from bertjax.tokenizers.folder import METADATA

_SINGLE, _PAIR = ("A",), ("A", "B")


def template(tokenizer: Tokenizer, *, cls_last: bool = False) -> Definition | None:
    """The post-processor that adds special tokens: [CLS] A [SEP] and [CLS] A [SEP] B [SEP].

    Args:
      tokenizer: A `Tokenizer`; without [CLS] and [SEP] there is no template.
      cls_last: Whether [CLS] ends a sequence, as segment 2: A [SEP] [CLS], A [SEP] B [SEP] [CLS].
    """
    if tokenizer.cls_id is None or tokenizer.sep_id is None:
        return None
    cls, sep = tokenizer.ids_to_pieces([tokenizer.cls_id, tokenizer.sep_id])
    ids = {cls: tokenizer.cls_id, sep: tokenizer.sep_id}

    def special(name: str, segment: int) -> Definition:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def sequence(names: tuple[str, ...]) -> list[Definition]:
        parts = [] if cls_last else [special(cls, 0)]
        for segment, name in enumerate(names):
            if segment:
                parts += [special(sep, segment)] * (tokenizer.pair_separators - 1)
            parts += [{"Sequence": {"id": name, "type_id": segment}}, special(sep, segment)]
        return [*parts, special(cls, 2)] if cls_last else parts

    return {
        "type": "TemplateProcessing",
        "single": sequence(_SINGLE),
        "pair": sequence(_PAIR),
        "special_tokens": {
            name: {"id": name, "ids": [identity], "tokens": [name]}
            for name, identity in ids.items()
        },
    }


_Proto = sentencepiece_model_pb2.ModelProto
_UNIGRAM, _BPE = 1, 2
_USER_DEFINED = 4

_SPACE = "▁"


def sentencepiece_definition(model: bytes, tokenizer: Tokenizer) -> Definition:
    """Converts a `spiece.model` to the contents of a `tokenizer.json`.

    Args:
      model: The serialised SentencePiece model.
      tokenizer: The same model as a `Tokenizer`, for its special tokens.

    Raises:
      UserError: `tokenizers` has no equivalent.
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
        raise UserError(
            "SentencePiece model: got user-defined pieces, expected none; transformers has no "
            "equivalent, so that the run cannot be exported"
        )
    if trainer.model_type == _UNIGRAM:
        return {
            "type": "Unigram",
            "unk_id": trainer.unk_id,
            "vocab": [[piece.piece, piece.score] for piece in pieces],
            "byte_fallback": trainer.byte_fallback,
        }
    if trainer.model_type != _BPE:
        raise UserError(
            "SentencePiece model: got model_type word or char, expected unigram or bpe; "
            "transformers has no equivalent, so that the run cannot be exported"
        )
    return {
        "type": "BPE",
        "unk_token": pieces[trainer.unk_id].piece,
        "fuse_unk": True,
        "byte_fallback": trainer.byte_fallback,
        "vocab": {piece.piece: identity for identity, piece in enumerate(pieces)},
        "merges": _merges({piece.piece: piece.score for piece in pieces}),
    }


def _merges(scores: Mapping[str, float]) -> list[Sequence[str]]:
    """All pairs of pieces that form a piece, by descending score, the order of SentencePiece."""
    pairs = [
        (piece[:end], piece[end:])
        for piece in scores
        for end in range(1, len(piece))
        if piece[:end] in scores and piece[end:] in scores
    ]
    return sorted(pairs, key=lambda pair: -scores["".join(pair)])


def _special(tokenizer: Tokenizer, identity: int) -> Definition:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content = tokenizer.ids_to_pieces([identity])[0]
    return {"id": identity, "content": content, **flags, "special": True}


_ROLES = ("pad", "unk", "cls", "sep", "mask")

CONFIG, DEFINITION = "tokenizer_config.json", "tokenizer.json"


def write(
    folder: pathlib.Path,
    tokenizer: Tokenizer,
    *,
    max_length: float,
    has_segments: bool,
    cls_last: bool,
    generates: bool = False,
) -> None:
    """Writes the tokenizer into a model's folder.

    Args:
      folder: Folder of the model.
      tokenizer: A `Tokenizer` with its `kind`.
      max_length: Maximum number of tokens; infinity for no maximum.
      has_segments: Whether the model distinguishes segments.
      cls_last: Whether [CLS] ends a sequence; padding then comes before the text, because
        classifiers of such models in transformers read the last position of a row. Without
        absolute positions the padding side does not change the outputs.
      generates: Whether the model continues prompts: no token is added to these then, and padding
        comes before them.

    Raises:
      UserError: the tokenizer has no equivalent in `tokenizers`.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        saved = pathlib.Path(temporary, "tokenizer")
        tokenizer.save(str(saved))
        if not (saved / DEFINITION).is_file():
            model = (saved / "spiece.model").read_bytes()
            content = sentencepiece_definition(model, tokenizer)
            write_hf_json(saved / DEFINITION, content)
        definition = with_space_in_mask(read_json(saved / DEFINITION))
        if cls_last or generates:
            definition["post_processor"] = None if generates else template(tokenizer, cls_last=True)
        write_hf_json(saved / DEFINITION, definition)
        for path in saved.iterdir():
            if path.name not in (METADATA, CONFIG):
                path.rename(folder / path.name)
    ids = {role: getattr(tokenizer, f"{role}_id") for role in _ROLES}
    names = {
        f"{role}_token": tokenizer.ids_to_pieces([identity])[0]
        for role, identity in ids.items()
        if identity is not None
    }
    inputs = ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"]
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": inputs,
        **({"model_max_length": max_length} if math.isfinite(max_length) else {}),
        **({"padding_side": "left"} if cls_last or generates else {}),
        **names,
    }
    write_hf_json(folder / CONFIG, content)
