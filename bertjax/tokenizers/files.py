"""Read released vocabularies: `vocab.txt`, `encoder.json` + `vocab.bpe`, `tokenizer.json`."""

import json
import pathlib
from collections.abc import Collection
from typing import Any

from bertjax.errors import UserError
from bertjax.tokenizers import definitions
from bertjax.tokenizers.definitions import Definition

BYTE_LEVEL_PAIRS = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
"""OpenAI's names and Hugging Face's for the two files of a byte-level BPE."""

_MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")

_CONFIG = "tokenizer_config.json"

_CLASSES = {
    "BertNormalizer": ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"),
    "ByteLevel": ("RobertaTokenizer", "GPT2Tokenizer"),
}
"""The classes of transformers that replace a step of a `tokenizer.json` by their own settings."""

_SETTINGS = {
    "BertNormalizer": {
        "lowercase": ("do_lower_case", True),
        "strip_accents": ("strip_accents", None),
        "handle_chinese_chars": ("tokenize_chinese_chars", True),
    },
    "ByteLevel": {"add_prefix_space": ("add_prefix_space", False)},
}
"""For each field of such a step its name in `tokenizer_config.json`, and its default there."""


def read_vocab_txt(path: pathlib.Path, lowercase: bool | None = None) -> Definition:
    """Reads a WordPiece vocabulary with one piece a line; the line's number is the id.

    Args:
      path: the file; a `tokenizer_config.json` beside it is heeded.
      lowercase: whether text is lowercased. None: as the config beside it says, and without one,
        unless some piece has a capital letter.

    Raises:
      UserError: the file is no such vocabulary.
    """
    lines = _read_text(path).split("\n")
    pieces = [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    vocabulary: dict[str, int] = {}
    for number, piece in enumerate(pieces, 1):
        if piece in vocabulary:
            raise UserError(
                f"{path}, line {number}: piece {piece!r} stands on line {vocabulary[piece] + 1} "
                "already; a vocabulary names each piece once"
            )
        vocabulary[piece] = number - 1
    if "[UNK]" not in vocabulary:
        raise UserError(f"{path} has no line [UNK]; a WordPiece vocabulary needs one")
    config = _read_config(path.with_name(_CONFIG))
    if lowercase is None:
        lowercase = config.get("do_lower_case", not _has_capitals(pieces))
    return definitions.wordpiece(
        vocabulary,
        lowercase=lowercase,
        strip_accents=config.get("strip_accents"),
        split_chinese=config.get("tokenize_chinese_chars", True),
    )


def read_byte_level(vocabulary_path: pathlib.Path, merges_path: pathlib.Path) -> Definition:
    """Reads GPT-2's pair of files: pieces with their ids, and merges in order.

    Raises:
      UserError: one of them is not what it should be.
    """
    vocabulary = read_json(vocabulary_path)
    if not _is_vocabulary(vocabulary):
        raise UserError(f"{vocabulary_path} is no JSON object of piece to id")
    merges = []
    for number, line in enumerate(_read_text(merges_path).split("\n"), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.removesuffix("\r").split(" ")
        if len(pair) != 2:
            raise UserError(f"{merges_path}, line {number}: expected two pieces, got {line!r}")
        for piece in (*pair, "".join(pair)):
            if piece not in vocabulary:
                raise UserError(
                    f"{merges_path}, line {number}: piece {piece!r} is not in {vocabulary_path}; "
                    "do the two files belong together?"
                )
        merges.append((pair[0], pair[1]))
    return definitions.byte_level(vocabulary, merges)


def read_definition(path: pathlib.Path) -> Definition:
    """Reads a `tokenizer.json` of Hugging Face's `tokenizers`.

    Raises:
      UserError: it is none, or of a model that bertjax does not run.
    """
    definition = read_json(path)
    model = definition.get("model") if isinstance(definition, dict) else None
    if not isinstance(model, dict) or not model.get("vocab"):
        raise UserError(f"{path} is no tokenizer.json: it has no model with a vocabulary")
    if model.get("type") not in _MODELS:
        raise UserError(
            f"{path}: model type {model.get('type')!r} is unknown; expected one of "
            f"{', '.join(_MODELS)}"
        )
    unknown = model.get("unk_token", model.get("unk_id"))
    if model["type"] != "BPE" and (unknown is None or unknown not in _names(model)):
        raise UserError(
            f"{path}: the {model['type']} vocabulary lacks its token for unknown words "
            f"({unknown!r}); add it"
        )
    return definition


def with_settings(definition: Definition, path: pathlib.Path) -> Definition:
    """Applies the `tokenizer_config.json` next to a file, which in transformers overrides it.

    Only the classes that are named after models do so; the generic ones follow `tokenizer.json`.

    Args:
      definition: The content of the file.
      path: The file.

    Raises:
      UserError: the config is not JSON.
    """
    if not path.with_name(_CONFIG).is_file():
        return definition
    config = _read_config(path.with_name(_CONFIG))
    made = dict(definition)
    for part in ("normalizer", "pre_tokenizer"):
        step = definition.get(part) or {}
        classes = _CLASSES.get(step.get("type"), ())
        name = config.get("tokenizer_class") or next(iter(classes), "")
        if name.removesuffix("Fast") in classes:
            words = _SETTINGS[step["type"]].items()
            made[part] = step | {field: config.get(*stated) for field, stated in words}
    return made


def read_json(path: pathlib.Path) -> Any:
    """Parses a JSON file.

    Raises:
      UserError: it is not there or not JSON.
    """
    try:
        return json.loads(_read_text(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None


def _read_text(path: pathlib.Path) -> str:
    if not path.is_file():
        raise UserError(f"{path} is missing")
    content = path.read_bytes()
    if not content.strip():
        raise UserError(f"{path} is empty; a vocabulary was expected")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 at byte {error.start}; a vocabulary was expected"
        ) from None


def _read_config(path: pathlib.Path) -> dict[str, Any]:
    config = read_json(path) if path.is_file() else {}
    if not isinstance(config, dict):
        raise UserError(f"{path} is no JSON object")
    return config


def _names(model: Definition) -> Collection[str | int]:
    """What may name the unknown token: a piece, or in a list of pieces a number."""
    vocabulary = model["vocab"]
    return vocabulary if isinstance(vocabulary, dict) else range(len(vocabulary))


def _is_vocabulary(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and bool(content)
        and all(type(identity) is int and identity >= 0 for identity in content.values())
        and len(set(content.values())) == len(content)
    )


def _has_capitals(pieces: list[str]) -> bool:
    """Whether text keeps its capitals; special and unused tokens in brackets tell nothing."""
    return any(piece != piece.lower() for piece in pieces if piece[:1] not in ("[", "<"))
