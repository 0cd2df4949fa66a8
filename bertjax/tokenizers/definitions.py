"""Build definitions of tokenizers: the content of Hugging Face's `tokenizer.json`, as plain data.

Released and trained vocabularies are both converted to this format: one class (`subword.py`) runs
all of them, and other programs can read saved tokenizers.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.tokenizers.special_tokens import KNOWN_SPECIALS, SPELLINGS

MAX_CHARACTERS_PER_WORD = 100
"""Longer words are [UNK], as in Hugging Face's WordPiece; google-research/bert uses 200."""

UNICODE_FORMS = ("none", "nfc", "nfd", "nfkc", "nfkd")

Definition = dict[str, Any]


def wordpiece(
    pieces: Mapping[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
    normalization: str = "none",
) -> Definition:
    """Defines BERT's tokenizer (Devlin et al. 2019, section 3): WordPiece in words.

    Text is cleaned and split at white space and punctuation before WordPiece.

    Args:
      pieces: Piece to id; pieces inside words begin with `##`.
      lowercase: Whether text is lowercased.
      strip_accents: Whether accents are removed; None means as `lowercase`, as in BERT.
      split_chinese: Whether every Chinese character is a word.
      normalization: Unicode normalization form, applied first.

    Raises:
      UserError: the normalization form is unknown.
    """
    steps = _unicode_form(normalization)
    steps.append(
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": split_chinese,
            "strip_accents": lowercase if strip_accents is None else strip_accents,
            "lowercase": lowercase,
        }
    )
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": MAX_CHARACTERS_PER_WORD,
        "vocab": dict(pieces),
    }
    definition = _definition(model, _sequence(steps), {"type": "BertPreTokenizer"})
    definition["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    if "[CLS]" in pieces and "[SEP]" in pieces:
        ends = {"cls": ["[CLS]", pieces["[CLS]"]], "sep": ["[SEP]", pieces["[SEP]"]]}
        definition["post_processor"] = {"type": "BertProcessing"} | ends
    return definition


def byte_level(
    pieces: Mapping[str, int],
    pairs: Sequence[tuple[str, str]],
    *,
    lowercase: bool = False,
    strip_accents: bool = False,
    normalization: str = "none",
) -> Definition:
    """Defines GPT-2's and RoBERTa's tokenizer: byte-level BPE (Radford et al. 2019, section 2.2).

    Byte-pair encoding of UTF-8 bytes can encode any text without an unknown token.

    Args:
      pieces: Piece to id; bytes are written as GPT-2's 256 printable characters.
      pairs: Merges, in order.
      lowercase: Whether text is lowercased.
      strip_accents: Whether accents are removed.
      normalization: Unicode normalization form, applied first.

    Raises:
      UserError: the normalization form is unknown.
    """
    steps = _normalizers(normalization, strip_accents=strip_accents, lowercase=lowercase)
    model = {"type": "BPE", "vocab": dict(pieces), "merges": [list(pair) for pair in pairs]}
    splitter = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    definition = with_space_in_mask(_definition(model, _sequence(steps), splitter))
    definition["decoder"] = dict(splitter)
    if "<s>" in pieces and "</s>" in pieces:
        ends = {"cls": ["<s>", pieces["<s>"]], "sep": ["</s>", pieces["</s>"]]}
        offsets = {"trim_offsets": True, "add_prefix_space": False}
        definition["post_processor"] = {"type": "RobertaProcessing"} | ends | offsets
    return definition


def words(
    pieces: Mapping[str, int],
    *,
    lowercase: bool = False,
    strip_accents: bool = False,
    normalization: str = "none",
    punctuation: bool = True,
) -> Definition:
    """Defines a word-level tokenizer: every word outside the vocabulary is [UNK].

    Models with character inputs (ELMo) read such words by their characters.

    Args:
      pieces: Word to id.
      lowercase: Whether text is lowercased.
      strip_accents: Whether accents are removed.
      normalization: Unicode normalization form, applied first.
      punctuation: Whether each punctuation mark is a word; otherwise text is split at white space
        only.

    Raises:
      UserError: the normalization form is unknown.
    """
    steps = _normalizers(normalization, strip_accents=strip_accents, lowercase=lowercase)
    model = {"type": "WordLevel", "vocab": dict(pieces), "unk_token": "[UNK]"}
    splitter = {"type": "BertPreTokenizer" if punctuation else "WhitespaceSplit"}
    return _definition(model, _sequence(steps), splitter)


def with_space_in_mask(definition: Definition) -> Definition:
    """Makes the mask token include the preceding space, if spaces are part of pieces.

    The masked token itself included that space. As a separate token the space would be an input
    that neither `bertjax fill-mask` nor the released tokenizers of RoBERTa and ALBERT produce.
    """
    splitter = json.dumps(definition.get("pre_tokenizer"))
    if not any(f'"{kind}"' in splitter for kind in ("ByteLevel", "Metaspace")):
        return definition
    added = [
        token | {"lstrip": True} if token["content"] in SPELLINGS["mask"] else token
        for token in definition.get("added_tokens") or []
    ]
    return definition | {"added_tokens": added}


def vocabulary(model: Definition) -> dict[str, int]:
    """Returns the ids of all pieces, for any type of model."""
    if isinstance(model["vocab"], dict):
        return model["vocab"]
    return {piece: identity for identity, (piece, _) in enumerate(model["vocab"])}


def merges(model: Definition) -> list[list[str]]:
    """Returns the merges of a BPE model as pairs; older files store each as one string."""
    return [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model["merges"]]


def special_pieces(model: Definition) -> list[str]:
    """Returns the pieces that are spelled like special tokens, in the order of ids.

    Results of merges are text: a BPE trained on web pages can contain `<s>`.
    """
    ids = vocabulary(model)
    merged = {"".join(pair) for pair in merges(model)} if "merges" in model else set()
    return sorted((KNOWN_SPECIALS & ids.keys()) - merged, key=ids.__getitem__)


def _definition(
    model: Definition, normalizer: Definition | None, splitter: Definition
) -> Definition:
    ids = vocabulary(model)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(piece, ids[piece]) for piece in special_pieces(model)],
        "normalizer": normalizer,
        "pre_tokenizer": splitter,
        "post_processor": None,
        "decoder": None,
        "model": model,
    }


def _added_token(piece: str, identity: int) -> Definition:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": identity, "content": piece} | flags | {"special": True}


def _unicode_form(name: str) -> list[Definition]:
    if name not in UNICODE_FORMS:
        known = ", ".join(UNICODE_FORMS)
        raise UserError(f"normalization: got {name!r}, expected one of {known}")
    return [] if name == "none" else [{"type": name.upper()}]


def _normalizers(form: str, *, strip_accents: bool, lowercase: bool) -> list[Definition]:
    steps = _unicode_form(form)
    if strip_accents:
        steps += [{"type": "NFD"}, {"type": "StripAccents"}]
    if lowercase:
        steps.append({"type": "Lowercase"})
    return steps


def _sequence(steps: list[Definition]) -> Definition | None:
    if len(steps) < 2:
        return steps[0] if steps else None
    return {"type": "Sequence", "normalizers": steps}
