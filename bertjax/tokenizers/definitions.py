"""Tokenizers of the `tokenizers` library as plain data: the content of a `tokenizer.json`.

Released vocabularies and newly trained ones are written down here in the words of Hugging Face's
`tokenizer.json`, so that one class (`tokenizer_subword.py`) runs them all and other programs can
read what we save.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.tokenizers.special_tokens import KNOWN_SPECIALS, SPELLINGS

MAX_CHARACTERS_PER_WORD = 100
"""Longer words become one [UNK], as in Hugging Face's WordPiece; google-research/bert has 200."""

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
    """BERT's tokenizer: cleaned and split at white space and punctuation, then WordPiece.

    Args:
      pieces: piece to id; those inside words begin with `##`.
      lowercase: whether text is lowercased.
      strip_accents: whether accents are dropped; None does what `lowercase` does, as BERT did.
      split_chinese: whether every Chinese character is a word of its own.
      normalization: a Unicode form applied before everything else.
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
    """GPT-2's and RoBERTa's tokenizer: byte-pair encoding of UTF-8 bytes, which misses nothing.

    Args:
      pieces: piece to id; bytes are written as GPT-2's 256 printable characters.
      pairs: pieces to be joined, in order.
      lowercase: whether text is lowercased.
      strip_accents: whether accents are dropped.
      normalization: a Unicode form applied before everything else.
    """
    steps = _unicode_form(normalization)
    if strip_accents:
        steps += [{"type": "NFD"}, {"type": "StripAccents"}]
    if lowercase:
        steps.append({"type": "Lowercase"})
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
    """Whole words; all others are one unknown word, of which a model may read the characters.

    Args:
      pieces: word to id.
      lowercase: whether text is lowercased.
      strip_accents: whether accents are dropped.
      normalization: a Unicode form applied before everything else.
      punctuation: whether each mark of punctuation is a word; else words end at white space alone.
    """
    steps = _unicode_form(normalization)
    if strip_accents:
        steps += [{"type": "NFD"}, {"type": "StripAccents"}]
    if lowercase:
        steps.append({"type": "Lowercase"})
    model = {"type": "WordLevel", "vocab": dict(pieces), "unk_token": "[UNK]"}
    splitter = {"type": "BertPreTokenizer" if punctuation else "WhitespaceSplit"}
    return _definition(model, _sequence(steps), splitter)


def with_space_in_mask(definition: Definition) -> Definition:
    """Makes the mask token take the space before it, where spaces are part of tokens.

    A masked token had that space in itself; left alone, it would be one more token, which `bertjax
    fill` does not feed the model, nor do the released tokenizers of RoBERTa and ALBERT.
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
    """Piece to id, of any type of model."""
    if isinstance(model["vocab"], dict):
        return model["vocab"]
    return {piece: identity for identity, (piece, _) in enumerate(model["vocab"])}


def merges(model: Definition) -> list[list[str]]:
    """The pairs that a BPE model joins; older files write each as one text."""
    return [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model["merges"]]


def special_pieces(model: Definition) -> list[str]:
    """The pieces that are special tokens by their spelling, in the order of ids.

    What a merge makes is text: a BPE of web pages may well have learned `<s>`.
    """
    ids = vocabulary(model)
    learned = {"".join(pair) for pair in merges(model)} if "merges" in model else set()
    return sorted((KNOWN_SPECIALS & ids.keys()) - learned, key=ids.__getitem__)


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
        raise UserError(f"normalization={name!r} is unknown here; choose one of {known}")
    return [] if name == "none" else [{"type": name.upper()}]


def _sequence(steps: list[Definition]) -> Definition | None:
    if len(steps) < 2:
        return steps[0] if steps else None
    return {"type": "Sequence", "normalizers": steps}
