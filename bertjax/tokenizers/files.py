"""Read released vocabularies: `vocab.txt`, `encoder.json` with `vocab.bpe`, `tokenizer.json`."""

import json
import pathlib
from collections.abc import Collection
from typing import Any

from bertjax.errors import UserError
from bertjax.tokenizers import definitions
from bertjax.tokenizers.definitions import Definition

BYTE_LEVEL_PAIRS = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
"""The two files of a byte-level BPE, vocabulary to merges: OpenAI's and Hugging Face's names."""

_MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")

_CONFIG = "tokenizer_config.json"

_CLASSES = {
    "BertNormalizer": ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"),
    "ByteLevel": ("RobertaTokenizer", "GPT2Tokenizer"),
}
"""Steps of a `tokenizer.json` that classes of transformers replace, and these classes."""

_SETTINGS = {
    "BertNormalizer": {
        "lowercase": ("do_lower_case", True),
        "strip_accents": ("strip_accents", None),
        "handle_chinese_chars": ("tokenize_chinese_chars", True),
    },
    "ByteLevel": {"add_prefix_space": ("add_prefix_space", False)},
}
"""Fields of such steps: name and default in `tokenizer_config.json`."""


def read_vocab_txt(path: pathlib.Path, lowercase: bool | None = None) -> Definition:
    """Reads a WordPiece vocabulary: one piece per line, whose id is the line index from 0.

    Args:
      path: The file; settings are read from a `tokenizer_config.json` in the same folder.
      lowercase: Whether text is lowercased. None reads it from that config; without one, text is
        lowercased unless some piece has a capital letter.

    Raises:
      UserError: the file is not a WordPiece vocabulary.
    """
    lines = _read_text(path).split("\n")
    pieces = [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    vocabulary: dict[str, int] = {}
    for number, piece in enumerate(pieces, 1):
        if piece in vocabulary:
            raise UserError(
                f"{path}, line {number}: duplicate piece {piece!r}, also on line "
                f"{vocabulary[piece] + 1}; remove one"
            )
        vocabulary[piece] = number - 1
    if "[UNK]" not in vocabulary:
        raise UserError(f"{path}: got no line [UNK], expected one; add the unknown token")
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
    """Reads the two files of a byte-level BPE: pieces with their ids, and merges in order.

    Raises:
      UserError: a file is missing or invalid, or the two do not match.
    """
    vocabulary = read_json(vocabulary_path)
    if not _is_vocabulary(vocabulary):
        raise UserError(f"{vocabulary_path}: expected a JSON object of pieces to unique ids >= 0")
    merges = []
    for number, line in enumerate(_read_text(merges_path).split("\n"), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.removesuffix("\r").split(" ")
        if len(pair) != 2:
            raise UserError(f"{merges_path}, line {number}: got {line!r}, expected two pieces")
        for piece in (*pair, "".join(pair)):
            if piece not in vocabulary:
                raise UserError(
                    f"{merges_path}, line {number}: piece {piece!r} is not in {vocabulary_path}; "
                    "use the two files of one tokenizer"
                )
        merges.append((pair[0], pair[1]))
    return definitions.byte_level(vocabulary, merges)


def read_definition(path: pathlib.Path) -> Definition:
    """Reads a `tokenizer.json` of Hugging Face's `tokenizers`.

    Raises:
      UserError: the file is not a `tokenizer.json`, or its type of model is not supported.
    """
    definition = read_json(path)
    model = definition.get("model") if isinstance(definition, dict) else None
    if not isinstance(model, dict) or not model.get("vocab"):
        raise UserError(f"{path} is not a tokenizer.json: expected a model with a vocabulary")
    if model.get("type") not in _MODELS:
        raise UserError(
            f"{path}: unsupported type of model: got {model.get('type')!r}, expected one of "
            f"{', '.join(_MODELS)}"
        )
    unknown = model.get("unk_token", model.get("unk_id"))
    if model["type"] != "BPE" and (unknown is None or unknown not in _names(model)):
        raise UserError(
            f"{path}: the {model['type']} vocabulary has no unknown token ({unknown!r}); add it"
        )
    return definition


def with_settings(definition: Definition, path: pathlib.Path) -> Definition:
    """Applies the `tokenizer_config.json` next to a tokenizer file, as transformers does.

    Only the classes of transformers that are named after models override a `tokenizer.json`; the
    generic ones do not.

    Args:
      definition: The content of the file.
      path: The file.

    Raises:
      UserError: the config is not a JSON object.
    """
    if not path.with_name(_CONFIG).is_file():
        return definition
    config = _read_config(path.with_name(_CONFIG))
    updated = dict(definition)
    for part in ("normalizer", "pre_tokenizer"):
        step = definition.get(part) or {}
        classes = _CLASSES.get(step.get("type"), ())
        name = config.get("tokenizer_class") or next(iter(classes), "")
        if name.removesuffix("Fast") in classes:
            fields = _SETTINGS[step["type"]].items()
            updated[part] = step | {field: config.get(*setting) for field, setting in fields}
    return updated


def read_json(path: pathlib.Path) -> Any:
    """Parses a JSON file.

    Raises:
      UserError: the file is missing, empty or not JSON.
    """
    try:
        return json.loads(_read_text(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None


def _read_text(path: pathlib.Path) -> str:
    """Returns the content of a file without its byte order mark, which some editors add."""
    if not path.is_file():
        raise UserError(f"{path} is missing")
    content = path.read_bytes()
    if not content.strip():
        raise UserError(f"{path} is empty; expected a vocabulary")
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 at byte {error.start}; expected a vocabulary"
        ) from None


def _read_config(path: pathlib.Path) -> dict[str, Any]:
    config = read_json(path) if path.is_file() else {}
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected a JSON object")
    return config


def _names(model: Definition) -> Collection[str | int]:
    """Returns the valid names of the unknown token: pieces, or indices for a list of pieces."""
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
    """Whether a piece has capitals, other than special and unused tokens in brackets."""
    return any(piece != piece.lower() for piece in pieces if piece[:1] not in ("[", "<"))
