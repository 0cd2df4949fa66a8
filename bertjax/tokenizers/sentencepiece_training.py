"""Train SentencePiece unigram and BPE models, reproducible between runs."""

import io
import pathlib
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator

import sentencepiece

from bertjax.errors import UserError
from bertjax.tokenizers.special_tokens import SENTENCEPIECE_SPECIALS
from bertjax.tokenizers.training import count_words

NORMALIZATIONS = ("nfkc", "none")

_THREADS = 4
"""Threads add floating-point counts up in their own order, so their number is part of the model."""

_STRETCH = re.compile(r"\S.{0,990}(?!\S)|\S{1,990}")
"""At most 991 characters, which fit the 4,192 bytes a sentence may have; cut at spaces if any."""

_BECOMES_SPACE = frozenset(
    map(chr, (*b"\t\n\f\r", 0x61C, 0x200B, 0x200C, 0x200E, 0x200F, 0x2581, 0xFEFF, 0xFFFD))
)
"""What SentencePiece's own normalisation turns into spaces beside what Unicode calls spaces."""


def train_sentencepiece(
    texts: Iterable[str],
    *,
    kind: str,
    vocab_size: int,
    lowercase: bool,
    strip_accents: bool,
    normalization: str,
    character_coverage: float,
) -> bytes:
    """Learns a SentencePiece model and returns it as the content of a `spiece.model`.

    Normalisation, lowercasing and the dropping of accents are part of the model.

    Args:
      texts: documents.
      kind: `unigram` or `sentencepiece_bpe`.
      vocab_size: how many pieces; fewer where the text has not that many.
      lowercase: whether text is case-folded.
      strip_accents: whether accents are dropped.
      normalization: `nfkc` (and SentencePiece's cleaning of white space) or `none`.
      character_coverage: the share of the text whose characters get pieces.

    Raises:
      UserError: a setting is impossible, or too small for the text.
    """
    if normalization not in NORMALIZATIONS:
        raise UserError(
            f"normalization={normalization!r} is not known to SentencePiece; choose one of "
            f"{', '.join(NORMALIZATIONS)}"
        )
    sentences = _sentences(texts) if kind == "unigram" else _word_counts(texts)
    with tempfile.TemporaryDirectory() as folder:
        return _train(
            sentences,
            model_type="unigram" if kind == "unigram" else "bpe",
            input_format="text" if kind == "unigram" else "tsv",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            **_normalization(normalization, lowercase, strip_accents, pathlib.Path(folder)),
        )


def _train(sentences: Iterator[str], **settings: str | int | float) -> bytes:
    pad, unknown, *controls = SENTENCEPIECE_SPECIALS
    failures: list[BaseException] = []
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_noting(sentences, failures),
            model_writer=model,
            pad_id=0,
            pad_piece=pad,
            unk_id=1,
            unk_piece=unknown,
            bos_id=-1,
            eos_id=-1,
            control_symbols=controls,
            hard_vocab_limit=False,
            num_threads=_THREADS,
            minloglevel=2,
            **settings,
        )
    except RuntimeError as error:
        if failures:
            raise failures[0] from None
        raise UserError(_explain(str(error), settings)) from None
    return model.getvalue()


def _noting(sentences: Iterator[str], failures: list[BaseException]) -> Iterator[str]:
    """Keeps what goes wrong while reading, which the library would turn into text."""
    try:
        yield from sentences
    except BaseException as error:
        failures.append(error)
        raise


def _explain(message: str, settings: dict[str, str | int | float]) -> str:
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return (
            f"vocab_size={settings['vocab_size']} has no room for the special tokens and the "
            f"characters of this text: expected {too_small[1]} or more, or a character_coverage "
            f"below {settings['character_coverage']}"
        )
    return f"sentencepiece cannot learn from this text: {' '.join(message.split())}"


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Lines, the long ones in stretches: the library skips sentences that are too long."""
    for text in texts:
        for line in text.splitlines():
            yield from _STRETCH.findall(line)


def _word_counts(texts: Iterable[str]) -> Iterator[str]:
    """What BPE learns from: every word once, with its count."""
    for word, count in count_words(texts, _STRETCH.findall).items():
        yield f"{word}\t{count}"


def _normalization(
    name: str, lowercase: bool, strip_accents: bool, folder: pathlib.Path
) -> dict[str, str]:
    """The library's name for a normalisation, or a table of characters where it has none."""
    if not strip_accents and not (lowercase and name == "none"):
        fold = "_cf" if lowercase else ""
        return {"normalization_rule_name": f"nmt_nfkc{fold}" if name == "nfkc" else "identity"}
    table = folder / "rules.tsv"
    table.write_text(_rules(name, lowercase, strip_accents))
    return {"normalization_rule_tsv": str(table)}


def _rules(name: str, lowercase: bool, strip_accents: bool) -> str:
    """Code points, and the code points that replace them, as SentencePiece's builder reads them."""
    convert = character_converter(name, lowercase=lowercase, strip_accents=strip_accents)
    lines = []
    for code in range(1, 0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        converted = convert(chr(code))
        if converted != chr(code):
            lines.append(f"{code:X}\t{' '.join(f'{ord(c):X}' for c in converted)}\n")
    return "".join(lines)


def character_converter(name: str, *, lowercase: bool, strip_accents: bool) -> Callable[[str], str]:
    """What a single character becomes; for `nfkc` as SentencePiece's rule `nmt_nfkc` has it."""
    composed, decomposed = ("NFKC", "NFKD") if name == "nfkc" else ("NFC", "NFD")

    def convert(character: str) -> str:
        if name == "nfkc":
            category = unicodedata.category(character)
            if character in _BECOMES_SPACE or category in ("Zs", "Zl", "Zp"):
                return " "
            if category == "Cc":
                return ""
            character = unicodedata.normalize("NFKC", character)
        if strip_accents:
            parts = unicodedata.normalize(decomposed, character)
            kept = "".join(part for part in parts if unicodedata.category(part) != "Mn")
            character = unicodedata.normalize(composed, kept)
        return "".join(map(_fold, character)) if lowercase else character

    return convert


def _fold(character: str) -> str:
    """Folds case one character to one, as SentencePiece does: German sharp s stays."""
    forms = (character.casefold(), character.lower(), character)
    return next(form for form in forms if len(form) == 1)
