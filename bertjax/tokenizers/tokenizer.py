"""Tokenizers: `load` reads one, bertjax's or a released one; `train` trains one from text.

What comes back is a `Tokenizer` of `bertjax/interfaces.py`, with its `kind`, and with
`encode_with_offsets` for tasks that point at characters.
"""

import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bertjax.errors import UserError, nearest
from bertjax.io import copies
from bertjax.tokenizers.folder import METADATA, main_file

if TYPE_CHECKING:
    from bertjax.tokenizers.sentencepiece import SentencePieceTokenizer
    from bertjax.tokenizers.subword import SubwordTokenizer

KINDS = ("wordpiece", "bpe", "unigram", "sentencepiece_bpe", "words")

_WITHOUT_ALPHABET = ("bpe", "words")
"""Kinds for which no share of the characters has to be chosen."""

_RELEASED = ("tokenizer.json", "vocab.txt", "encoder.json", "vocab.json", "spiece.model")
"""What is looked for in a folder that is not ours, the most complete description first."""


def load(
    path: str | pathlib.Path, *, lowercase: bool | None = None
) -> "SubwordTokenizer | SentencePieceTokenizer":
    """Reads a tokenizer.

    Args:
      path: a folder that `save` wrote; or a released tokenizer, as a folder or by one of its
        files: `tokenizer.json`, `vocab.txt`, `encoder.json` with `vocab.bpe`, `vocab.json` with
        `merges.txt`, `spiece.model` or another `*.model`. Where a `tokenizer_config.json` next to
        it says otherwise than a `tokenizer.json`, it decides, as in transformers.
      lowercase: for a `vocab.txt`, which does not say it itself, whether text is lowercased;
        None finds out (`tokenizer_config.json` beside it, or else whether pieces have capitals).

    Raises:
      UserError: nothing there can be read as a tokenizer.
    """
    path = copies.local_copy(path)
    if not path.exists():
        raise UserError(
            f"no tokenizer at {path}; `bertjax tokenizer --input TEXT --out {path}` makes one"
        )
    file = _find_main_file(path) if path.is_dir() else path
    if _is_vocab_txt(file):
        return _load_vocab_txt(file, lowercase)
    if lowercase is not None:
        raise UserError(
            f"lowercase={lowercase} was asked of {file}, which settles that itself; leave it out"
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
) -> "SubwordTokenizer | SentencePieceTokenizer":
    """Learns a tokenizer: the same one whenever it is given the same texts in the same order.

    Args:
      texts: documents, read once.
      kind: one of KINDS. `wordpiece` is BERT's, `bpe` the byte-level BPE of GPT-2 and RoBERTa,
        `unigram` SentencePiece's as in ALBERT, XLNet and T5, `sentencepiece_bpe` its BPE, `words`
        whole words for models that read characters.
      vocab_size: how many pieces, special tokens included. A text too small for so many gives
        fewer: compare `vocab_size` of the result.
      lowercase: None lowercases with `wordpiece` alone.
      strip_accents: whether accents are dropped; None does so for lowercased `wordpiece` alone,
        as BERT does.
      normalization: none, nfc, nfd, nfkc or nfkd; with SentencePiece none or nfkc. None is `none`,
        and `nfkc` with SentencePiece.
      character_coverage: the share of the running text whose characters get pieces; None is
        `tokenizer_words.CHARACTER_COVERAGE`. Not for `bpe`, which spells any byte, and `words`.

    Raises:
      UserError: a setting is impossible or the texts hold nothing.
    """
    if kind not in KINDS:
        raise UserError(f"no kind of tokenizer {kind!r}: {nearest(kind, KINDS)}")
    if lowercase is None:
        lowercase = kind == "wordpiece"
    if strip_accents is None:
        strip_accents = kind == "wordpiece" and lowercase
    if normalization is None:
        normalization = "none" if kind in ("wordpiece", *_WITHOUT_ALPHABET) else "nfkc"
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "lowercase": lowercase,
        "strip_accents": strip_accents,
        "normalization": normalization,
    }
    if kind in _WITHOUT_ALPHABET:
        if character_coverage is not None:
            raise UserError(f"character_coverage is not for kind={kind!r}, which has no alphabet")
        return _train_without_alphabet(_not_empty(texts), kind, settings)
    settings["character_coverage"] = _checked_coverage(character_coverage)
    if kind == "wordpiece":
        return _train_wordpiece(_not_empty(texts), settings)
    return _train_sentencepiece(_not_empty(texts), kind, settings)


def _find_main_file(folder: pathlib.Path) -> pathlib.Path:
    if (folder / METADATA).is_file():
        return main_file(folder)
    for name in _RELEASED:
        if (folder / name).is_file():
            return folder / name
    models = sorted(folder.glob("*.model"))
    if len(models) != 1:
        found = ", ".join(model.name for model in models) or "none"
        raise UserError(
            f"{folder} is no tokenizer's folder: expected {', '.join(_RELEASED)} or one *.model in "
            f"it ({found} found)"
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
            f"{file} is no tokenizer file by its name; expected {', '.join(_RELEASED)} or *.model"
        )
    definition = with_settings(read_definition(file), file)
    try:
        return SubwordTokenizer(definition)
    except UserError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{file} is no tokenizer.json: {error}") from None


def _checked_coverage(coverage: float | None) -> float:
    from bertjax.tokenizers.training import CHARACTER_COVERAGE

    if coverage is None:
        return CHARACTER_COVERAGE
    if not 0 < coverage <= 1:
        raise UserError(f"character_coverage={coverage}: expected more than 0 and at most 1")
    return coverage


def _not_empty(texts: Iterable[str]) -> Iterator[str]:
    """The texts that hold anything, of which there must be one."""
    empty = True
    for text in texts:
        if text.strip():
            empty = False
            yield text
    if empty:
        raise UserError("the input holds no text to learn a vocabulary from")


def _train_wordpiece(texts: Iterable[str], settings: dict[str, Any]) -> "SubwordTokenizer":
    from bertjax.tokenizers.subword import SubwordTokenizer
    from bertjax.tokenizers.training import train_wordpiece

    return SubwordTokenizer(train_wordpiece(texts, **settings))


def _train_without_alphabet(
    texts: Iterable[str], kind: str, settings: dict[str, Any]
) -> "SubwordTokenizer":
    from bertjax.tokenizers.subword import SubwordTokenizer
    from bertjax.tokenizers.training import train_byte_level, train_words

    trainer = {"bpe": train_byte_level, "words": train_words}[kind]
    return SubwordTokenizer(trainer(texts, **settings))


def _train_sentencepiece(
    texts: Iterable[str], kind: str, settings: dict[str, Any]
) -> "SentencePieceTokenizer":
    from bertjax.tokenizers.sentencepiece import SentencePieceTokenizer
    from bertjax.tokenizers.sentencepiece_training import train_sentencepiece

    return SentencePieceTokenizer(train_sentencepiece(texts, kind=kind, **settings))
