"""WordPiece, byte-level BPE and other `tokenizer.json` tokenizers, on the `tokenizers` library."""

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool
from tokenizers import Tokenizer

from bertjax.errors import UserError
from bertjax.tokenizers.definitions import Definition, merges, special_pieces, vocabulary
from bertjax.tokenizers.folder import write_folder
from bertjax.tokenizers.special_tokens import KNOWN_SPECIALS, SpecialTokens, trim_spaces

_KINDS = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram", "WordLevel": "words"}

_UNMATCHABLE = "\uffff "
"""Prefix of the library's names of special tokens, so that none is matched in text: spaces never
reach the model of a tokenizer, and U+FFFF is a Unicode noncharacter."""


class SubwordTokenizer:
    """Tokenizer defined by a `tokenizer.json`; special tokens are never matched in text.

    Attributes:
      kind: wordpiece, bpe, unigram or words.
      definition: The content of its `tokenizer.json`.
      vocab_size: One more than the largest id.
      word_starts: Whether the piece of each id begins a word; True for special tokens. The first
        token of a text begins a word too, but a byte-level piece does not mark it, since no space
        precedes it: callers mark the first token of each text themselves.
      pair_separators: Number of [SEP] between two texts; RoBERTa's vocabularies have two.
      fingerprint: SHA-256 of everything that affects the ids of a text.
    """

    def __init__(self, definition: Definition) -> None:
        """Builds the tokenizer from the content of a `tokenizer.json`."""
        specials = _special_ids(definition)
        self.definition = definition
        self._specials = SpecialTokens.from_spellings(specials)
        self._pieces = _pieces(definition)
        self._library = Tokenizer.from_str(json.dumps(_library_definition(definition, specials)))
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
        return SubwordTokenizer, (self.definition,)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Encodes each text to ids, without special tokens."""
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encodes a text to ids, and the (start, end) character span of each."""
        encoding = self._library.encode(text, add_special_tokens=False)
        return encoding.ids, trim_spaces(text, encoding.offsets)

    def begins_word(self, ids: Sequence[int]) -> Bool[np.ndarray, " n"]:
        """Whether each token of an encoded text begins a word; see `interfaces.Tokenizer`."""
        begins = self.word_starts[list(ids)]
        if is_byte_level(self.definition):
            # No mark distinguishes a piece after a space-less boundary, as in "cat." or "don't".
            encoding = self._library.encode(self.decode(list(ids)), add_special_tokens=False)
            if encoding.ids == list(ids):
                begins = np.diff(encoding.word_ids, prepend=-1) != 0
        begins[:1] = True
        return begins

    def decode(self, ids: list[int]) -> str:
        """Decodes ids to text, in which special tokens are spelled out.

        Raises:
          UserError: an id is not in the vocabulary.
        """
        self.ids_to_pieces(ids)
        glue = "" if is_byte_level(self.definition) else " "
        return self._specials.decode_with_specials(ids, self._library.decode, glue)

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the vocabulary's piece for each id.

        Raises:
          UserError: an id is not in the vocabulary.
        """
        try:
            return [self._pieces[identity] for identity in ids]
        except KeyError as error:
            raise UserError(
                f"id outside the vocabulary: got {error.args[0]}, expected 0 to "
                f"{self.vocab_size - 1}"
            ) from None

    def save(self, directory: str) -> None:
        """Saves a folder that `load` and Hugging Face's libraries read, atomically.

        Raises:
          UserError: the directory contains another tokenizer or other files.
        """
        files = {"tokenizer.json": _to_json(self.definition)}
        if self.kind == "wordpiece":
            files |= _wordpiece_files(self.definition, self._pieces)
        elif is_byte_level(self.definition):
            files |= _byte_level_files(self.definition["model"])
        encoded = {name: text.encode() for name, text in files.items()}
        write_folder(directory, encoded, main="tokenizer.json", tokenizer=self)

    def _find_word_starts(self) -> Bool[np.ndarray, " V"]:
        begins_word = _word_start_rule(self.definition)
        starts = np.zeros(self.vocab_size, bool)
        for identity, piece in self._pieces.items():
            starts[identity] = identity in self._specials.pieces or begins_word(piece)
        return starts


def _special_ids(definition: Definition) -> dict[str, int]:
    """Returns the ids of special tokens: tokens marked as special, and known spellings."""
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


def _library_definition(definition: Definition, specials: dict[str, int]) -> Definition:
    """Changes a definition so that no special token is matched, and none is added or truncated."""
    names = {piece: _UNMATCHABLE + piece for piece in specials}
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
    added = _rename_added(definition.get("added_tokens") or [], names)
    return definition | nothing | {"model": model, "added_tokens": added}


def _rename_added(added: list[Definition], names: dict[str, str]) -> list[Definition]:
    """Renames added tokens; returns none if all are special, since matching them costs time."""
    if all(token["content"] in names for token in added):
        return []
    return [
        token | {"content": names[token["content"]], "special": True}
        if token["content"] in names
        else token
        for token in added
    ]


def _word_start_rule(definition: Definition) -> Callable[[str], bool]:
    """Returns a predicate for pieces that begin a word."""
    model = definition["model"]
    inside = model.get("continuing_subword_prefix")
    if inside:
        return lambda piece: not piece.startswith(inside)
    if is_byte_level(definition):
        return lambda piece: piece.startswith("Ġ")
    if "▁" in _around_model(definition):
        return lambda piece: piece.startswith("▁")
    if model["type"] == "WordLevel" or model.get("end_of_word_suffix"):
        # GPT's pieces mark the ends of words, from which no single piece shows where one begins.
        return lambda piece: True
    raise UserError(
        "unsupported tokenizer.json: its pieces do not mark the beginnings of words; expected "
        "WordPiece (##), byte-level BPE (Ġ), SentencePiece (▁) or whole words"
    )


def is_byte_level(definition: Definition) -> bool:
    """Whether pieces are bytes, as of byte-level BPE, or of WordPiece without a prefix (##)."""
    model = definition["model"]
    marks_inside = model["type"] == "WordPiece" and model.get("continuing_subword_prefix", "##")
    is_subword = model["type"] in ("BPE", "WordPiece") and not marks_inside
    return is_subword and '"ByteLevel"' in _around_model(definition)


def _pair_separators(processor: Definition) -> int:
    """Counts the special tokens that a post-processor puts between two texts, at least 1."""
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
    """Hashes a definition independently of its JSON form: key order, form of merges, defaults."""
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
    """Returns `vocab.txt` and its `tokenizer_config.json`, if these define the whole tokenizer."""
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
