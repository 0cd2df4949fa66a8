"""WordPiece, byte-level BPE and other `tokenizer.json` files, run by the `tokenizers` library."""

import hashlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool
from tokenizers import Tokenizer

from bertjax.errors import UserError
from bertjax.tokenizers.definitions import Definition, merges, special_pieces, vocabulary
from bertjax.tokenizers.folder import write_folder
from bertjax.tokenizers.special_tokens import KNOWN_SPECIALS, SpecialTokens, trim_spaces

_KINDS = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram", "WordLevel": "words"}

_UNSPELLABLE = "\uffff "
"""Begins the name by which the library knows a special token. No text can spell it: spaces never
reach a model, and Unicode keeps this code point out of text."""


class SubwordTokenizer:
    """A tokenizer that a `tokenizer.json` defines; special tokens are never matched in text.

    Attributes:
      kind: wordpiece, bpe, unigram or words.
      vocab_size: one more than the largest id.
      word_starts: for each id whether its piece begins a word; special tokens do. With byte-level
        pieces the first token of a text begins a word too, although no space stands before it:
        whoever cuts sentences counts each sentence's first token as a start.
      pair_separators: how many [SEP] stand between two texts: RoBERTa's vocabularies want two.
      fingerprint: SHA-256 of all that decides which ids a text gets.
    """

    def __init__(self, definition: Definition) -> None:
        """Takes the content of a `tokenizer.json`."""
        specials = _special_ids(definition)
        self._definition = definition
        self._specials = SpecialTokens.from_spellings(specials)
        self._pieces = _pieces(definition)
        self._library = Tokenizer.from_str(json.dumps(_runtime(definition, specials)))
        self._library.encode_special_tokens = True
        self.kind = _KINDS[definition["model"]["type"]]
        self.vocab_size = max(self._pieces) + 1
        self.pad_id = self._specials.pad_id
        self.unk_id = self._specials.unk_id
        self.cls_id = self._specials.cls_id
        self.sep_id = self._specials.sep_id
        self.mask_id = self._specials.mask_id
        self.pair_separators = _pair_separators(definition.get("post_processor") or {})
        self.special_ids = tuple(self._specials.pieces)
        self.word_starts = self._find_word_starts()
        self.fingerprint = _fingerprint(definition, specials)

    def __reduce__(self) -> tuple[type["SubwordTokenizer"], tuple[Definition]]:
        return SubwordTokenizer, (self._definition,)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without any special token around them."""
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and which characters (start, end) of it each one covers."""
        encoding = self._library.encode(text, add_special_tokens=False)
        return encoding.ids, trim_spaces(text, encoding.offsets)

    def decode(self, ids: list[int]) -> str:
        """The text of ids; special tokens are spelled out.

        Raises:
          UserError: an id is not in the vocabulary.
        """
        self.pieces(ids)
        glue = "" if _is_byte_level(self._definition) else " "
        return self._specials.decode_around(ids, self._library.decode, glue)

    def pieces(self, ids: list[int]) -> list[str]:
        """The vocabulary's spelling of each id.

        Raises:
          UserError: an id is not in the vocabulary.
        """
        try:
            return [self._pieces[identity] for identity in ids]
        except KeyError as error:
            raise UserError(
                f"id {error.args[0]} is not in the vocabulary: ids are 0 to {self.vocab_size - 1}"
            ) from None

    def save(self, directory: str) -> None:
        """Writes a folder that `load` and Hugging Face's libraries read, whole or not at all.

        Raises:
          UserError: the directory holds something else already.
        """
        files = {"tokenizer.json": _to_json(self._definition)}
        if self.kind == "wordpiece":
            files |= _wordpiece_files(self._definition, self._pieces)
        elif _is_byte_level(self._definition):
            files |= _byte_level_files(self._definition["model"])
        encoded = {name: text.encode() for name, text in files.items()}
        write_folder(directory, encoded, main="tokenizer.json", tokenizer=self)

    def _find_word_starts(self) -> Bool[np.ndarray, " V"]:
        begins_word = _begins_word(self._definition)
        starts = np.zeros(self.vocab_size, bool)
        for identity, piece in self._pieces.items():
            starts[identity] = identity in self._specials.pieces or begins_word(piece)
        return starts


def _special_ids(definition: Definition) -> dict[str, int]:
    """Every special token: those that are marked so, and those that everybody knows."""
    ids = vocabulary(definition["model"])
    known = {piece: ids[piece] for piece in special_pieces(definition["model"])}
    return known | {
        token["content"]: token["id"]
        for token in definition.get("added_tokens") or []
        if token.get("special") or token["content"] in KNOWN_SPECIALS
    }


def _pieces(definition: Definition) -> dict[int, str]:
    pieces = {identity: piece for piece, identity in vocabulary(definition["model"]).items()}
    added = definition.get("added_tokens") or []
    return pieces | {token["id"]: token["content"] for token in added}


def _runtime(definition: Definition, specials: dict[str, int]) -> Definition:
    """What the library is given: no special token can be matched, nothing is added or cut."""
    names = {piece: _UNSPELLABLE + piece for piece in specials}
    model = dict(definition["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): n for piece, n in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "dropout" in model:
        model["dropout"] = None
    nothing = dict.fromkeys(("truncation", "padding", "post_processor"))
    added = _renamed(definition.get("added_tokens") or [], names)
    return definition | nothing | {"model": model, "added_tokens": added}


def _renamed(added: list[Definition], names: dict[str, str]) -> list[Definition]:
    """The added tokens, or none where all are special: looking out for them costs time."""
    if all(token["content"] in names for token in added):
        return []
    return [
        token | {"content": names[token["content"]], "special": True}
        if token["content"] in names
        else token
        for token in added
    ]


def _begins_word(definition: Definition) -> Callable[[str], bool]:
    """How a piece shows that it begins a word."""
    model = definition["model"]
    inside = model.get("continuing_subword_prefix")
    if inside:
        return lambda piece: not piece.startswith(inside)
    if _is_byte_level(definition):
        return lambda piece: piece.startswith("Ġ")
    if "▁" in _around_model(definition):
        return lambda piece: piece.startswith("▁")
    if model["type"] == "WordLevel" or model.get("end_of_word_suffix"):
        # GPT's pieces say where words end; where one begins, a piece by itself does not say.
        return lambda piece: True
    raise UserError(
        "a tokenizer.json whose pieces mark no beginnings of words cannot be used: bertjax reads "
        "WordPiece (##), byte-level BPE (Ġ), SentencePiece (▁) and whole words"
    )


def _is_byte_level(definition: Definition) -> bool:
    return definition["model"]["type"] == "BPE" and '"ByteLevel"' in _around_model(definition)


def _pair_separators(processor: Definition) -> int:
    """The number of special tokens that a post-processor puts between two texts, at least 1."""
    if processor.get("type") == "Sequence":
        return max(map(_pair_separators, processor["processors"]), default=1)
    if processor.get("type") == "TemplateProcessing":
        texts = [place for place, part in enumerate(processor["pair"]) if "Sequence" in part]
        return max([1, *(later - place - 1 for place, later in itertools.pairwise(texts))])
    return 2 if processor.get("type") == "RobertaProcessing" else 1


def _around_model(definition: Definition) -> str:
    parts = [definition.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")]
    return json.dumps(parts, ensure_ascii=False)


def _fingerprint(definition: Definition, specials: dict[str, int]) -> str:
    """A hash that ignores how the file was written: order, merges as text or pairs, defaults."""
    model = {key: value for key, value in definition["model"].items() if key != "dropout"}
    if "merges" in model:
        model["merges"] = merges(model)
    added = definition.get("added_tokens") or []
    normalizer = dict(definition.get("normalizer") or {})
    if normalizer.get("type") == "BertNormalizer" and normalizer["strip_accents"] is None:
        normalizer["strip_accents"] = normalizer["lowercase"]
    decisive = {
        "model": _without_defaults(model),
        "normalizer": normalizer,
        "pre_tokenizer": definition.get("pre_tokenizer"),
        "specials": specials,
        "added": [token for token in added if token["content"] not in specials],
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _without_defaults(model: Definition) -> Definition:
    return {
        key: value
        for key, value in model.items()
        if value is not None and value is not False and value != ""
    }


def _to_json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2)


def _byte_level_files(model: Definition) -> dict[str, str]:
    return {
        "vocab.json": _to_json(model["vocab"]),
        "merges.txt": "\n".join(["#version: 0.2", *map(" ".join, merges(model)), ""]),
    }


def _wordpiece_files(definition: Definition, pieces: dict[int, str]) -> dict[str, str]:
    """Google's `vocab.txt` with the settings that it cannot hold, where it can tell the whole."""
    normalizer = definition["normalizer"] or {}
    if normalizer.get("type") != "BertNormalizer" or sorted(pieces) != list(range(len(pieces))):
        return {}
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }
    lines = [pieces[identity] for identity in sorted(pieces)]
    return {"vocab.txt": "\n".join([*lines, ""]), "tokenizer_config.json": _to_json(config)}
