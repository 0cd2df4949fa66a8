"""Load and train tokenizers: WordPiece, byte-level BPE, SentencePiece and whole words.

`load` reads a tokenizer saved by bertjax or a released vocabulary; `train` trains one from text.
Both return an `interfaces.Tokenizer`.
"""

import functools
import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bertjax.errors import UserError, nearest
from bertjax.io import copies
from bertjax.tokenizers.folder import METADATA, verify_folder

if TYPE_CHECKING:
    from bertjax.interfaces import Tokenizer
    from bertjax.tokenizers.sentencepiece import SentencePieceTokenizer
    from bertjax.tokenizers.subword import SubwordTokenizer

KINDS = ("wordpiece", "bpe", "unigram", "sentencepiece_bpe", "words")

_NO_ALPHABET = ("bpe", "words")
"""Kinds without a learned alphabet, to which `character_coverage` does not apply."""

_RELEASED = ("tokenizer.json", "vocab.txt", "encoder.json", "vocab.json", "spiece.model")
"""Files searched for in a folder without bertjax's metadata, the most complete format first."""


def load(path: str | pathlib.Path, *, lowercase: bool | None = None) -> "Tokenizer":
    """Loads a tokenizer from a folder or a vocabulary file.

    Args:
      path: A folder written by `save`; a run or corpus, which contains one; or a released
        tokenizer, as a folder or as one of its files: `tokenizer.json`, `vocab.txt`,
        `encoder.json` with `vocab.bpe`, `vocab.json` with `merges.txt`, `spiece.model` or another
        `*.model`. A `tokenizer_config.json` in the same folder overrides a `tokenizer.json`, as in
        transformers.
      lowercase: Whether text is lowercased, for a `vocab.txt`, which does not specify it. None
        reads it from `tokenizer_config.json` in the same folder; without that file, text is
        lowercased unless some piece has a capital letter.

    Raises:
      UserError: `path` does not exist or is not a tokenizer, or `lowercase` is given for another
        format than `vocab.txt`.
    """
    path = copies.local_copy(path)
    if not path.exists():
        raise UserError(
            f"no tokenizer at {path}; train one with "
            f"`bertjax tokenizer train --input TEXT --output {path}`"
        )
    file = _find_main_file(path) if path.is_dir() else path
    if _is_vocab_txt(file):
        return _load_vocab_txt(file, lowercase)
    if lowercase is not None:
        raise UserError(
            f"lowercase applies only to a vocab.txt: got lowercase={lowercase} for {file}, which "
            "specifies it; remove lowercase"
        )
    if file.suffix == ".model":
        from bertjax.tokenizers.sentencepiece import read_sentencepiece

        return read_sentencepiece(file)
    return _load_definition(file)


def train(
    texts: Iterable[str],
    *,
    kind: str = "wordpiece",
    vocab_size: int = 30_522,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    normalization: str | None = None,
    character_coverage: float | None = None,
) -> "Tokenizer":
    """Trains a tokenizer; the same texts in the same order give the same tokenizer.

    Args:
      texts: Documents, read once.
      kind: One of KINDS: `wordpiece` (BERT), `bpe` (the byte-level BPE of GPT-2 and RoBERTa),
        `unigram` (SentencePiece, as in ALBERT, XLNet and T5), `sentencepiece_bpe`, or `words`
        (whole words, for models with character inputs).
      vocab_size: Number of pieces, including special tokens. A small corpus can give fewer:
        compare `vocab_size` of the result.
      lowercase: Whether text is lowercased; None lowercases `wordpiece` only.
      strip_accents: Whether accents are removed; None removes them from lowercased `wordpiece`
        only, as in BERT.
      normalization: none, nfc, nfd, nfkc or nfkd; for SentencePiece none or nfkc. None is `nfkc`
        for SentencePiece and `none` for all others.
      character_coverage: Fraction of the running text whose characters are in the alphabet; None
        is `training.CHARACTER_COVERAGE`. Not for `bpe`, whose alphabet is the 256 bytes, nor for
        `words`.

    Raises:
      UserError: a setting is invalid, or `texts` is empty.
    """
    if kind not in KINDS:
        raise UserError(f"unknown kind of tokenizer: got {kind!r}, {nearest(kind, KINDS)}")
    if lowercase is None:
        lowercase = kind == "wordpiece"
    if strip_accents is None:
        strip_accents = kind == "wordpiece" and lowercase
    if normalization is None:
        normalization = "none" if kind in ("wordpiece", *_NO_ALPHABET) else "nfkc"
    normalizer = {
        "lowercase": lowercase,
        "strip_accents": strip_accents,
        "normalization": normalization,
    }
    texts = _skip_empty(texts)
    if kind in _NO_ALPHABET:
        if character_coverage is not None:
            raise UserError(
                f"character_coverage: got {character_coverage}, expected none for kind={kind!r}, "
                "which has no learned alphabet"
            )
        return _train_subword(texts, kind, vocab_size, normalizer)
    coverage = {"character_coverage": _check_coverage(character_coverage)}
    if kind == "wordpiece":
        return _train_subword(texts, kind, vocab_size, normalizer, **coverage)
    return _train_sentencepiece(texts, kind, vocab_size=vocab_size, **normalizer, **coverage)


def _find_main_file(folder: pathlib.Path) -> pathlib.Path:
    for saved in (folder, folder / "tokenizer"):
        if (saved / METADATA).is_file():
            return verify_folder(saved)
    for name in _RELEASED:
        if (folder / name).is_file():
            return folder / name
    models = sorted(folder.glob("*.model"))
    if len(models) != 1:
        found = ", ".join(model.name for model in models) or "none"
        raise UserError(
            f"{folder} is not a tokenizer folder: got {found} as *.model files, expected one of "
            f"{', '.join(_RELEASED)} or exactly one *.model"
        )
    return models[0]


def _is_vocab_txt(file: pathlib.Path) -> bool:
    return file.suffix == ".txt" and file.name != "merges.txt"


def _load_vocab_txt(file: pathlib.Path, lowercase: bool | None) -> "SubwordTokenizer":
    from bertjax.tokenizers.files import read_vocab_txt
    from bertjax.tokenizers.subword import SubwordTokenizer

    return SubwordTokenizer(read_vocab_txt(file, lowercase))


def _load_definition(file: pathlib.Path) -> "SubwordTokenizer":
    from bertjax.tokenizers.files import (
        BYTE_LEVEL_PAIRS,
        read_byte_level,
        read_definition,
        with_settings,
    )
    from bertjax.tokenizers.subword import SubwordTokenizer

    for vocabulary, merges in BYTE_LEVEL_PAIRS.items():
        if file.name in (vocabulary, merges):
            pair = file.with_name(vocabulary), file.with_name(merges)
            return SubwordTokenizer(with_settings(read_byte_level(*pair), file))
    if file.suffix != ".json":
        raise UserError(
            f"unknown tokenizer file: got {file}, expected {', '.join(_RELEASED)} or *.model"
        )
    definition = with_settings(read_definition(file), file)
    try:
        return SubwordTokenizer(definition)
    except UserError:
        raise
    except Exception as error:  # `tokenizers` raises no narrower type
        raise UserError(f"{file} is not a valid tokenizer.json: {error}") from None


def _check_coverage(coverage: float | None) -> float:
    from bertjax.tokenizers.training import CHARACTER_COVERAGE

    if coverage is None:
        return CHARACTER_COVERAGE
    if not 0 < coverage <= 1:
        raise UserError(f"character_coverage: got {coverage}, expected more than 0 and at most 1")
    return coverage


def _skip_empty(texts: Iterable[str]) -> Iterator[str]:
    """Skips empty texts; at least one must not be empty."""
    empty = True
    for text in texts:
        if text.strip():
            empty = False
            yield text
    if empty:
        raise UserError("cannot train a vocabulary: the input contains no text")


def _train_subword(
    texts: Iterable[str], kind: str, vocab_size: int, normalizer: dict[str, Any], **options: float
) -> "SubwordTokenizer":
    from bertjax.tokenizers import definitions, training
    from bertjax.tokenizers.subword import SubwordTokenizer

    train, define = {
        "wordpiece": (training.train_wordpiece, definitions.wordpiece),
        "bpe": (training.train_byte_level, definitions.byte_level),
        "words": (training.train_words, definitions.words),
    }[kind]
    define = functools.partial(define, **normalizer)
    return SubwordTokenizer(train(texts, vocab_size, define, **options))


def _train_sentencepiece(
    texts: Iterable[str], kind: str, **settings: Any
) -> "SentencePieceTokenizer":
    from bertjax.tokenizers.sentencepiece import SentencePieceTokenizer
    from bertjax.tokenizers.sentencepiece_training import train_sentencepiece

    return SentencePieceTokenizer(train_sentencepiece(texts, kind=kind, **settings))
