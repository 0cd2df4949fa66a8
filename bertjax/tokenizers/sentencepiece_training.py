"""Train SentencePiece unigram and BPE models, reproducible between runs."""

import io
import pathlib
import random
import re
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator

import sentencepiece

from bertjax.errors import UserError
from bertjax.tokenizers.special_tokens import SENTENCEPIECE_SPECIALS
from bertjax.tokenizers.training import count_words

NORMALIZATIONS = ("nfkc", "none")

_THREADS = 4
"""Fixed, since the order of floating-point sums over threads affects the trained model."""

_SENTENCE = re.compile(r"\S.{0,990}(?!\S)|\S{1,990}")
"""At most 991 characters, to fit SentencePiece's limit of 4,192 bytes; split at spaces if any."""

MAX_CHARACTERS = 1 << 28
"""Of a longer text the unigram model is trained on a sample of at most this size: SentencePiece
holds its text in memory, with about 20 bytes for each character."""

_BECOMES_SPACE = frozenset(
    map(chr, (*b"\t\n\f\r", 0x61C, 0x200B, 0x200C, 0x200E, 0x200F, 0x2581, 0xFEFF, 0xFFFD))
)
"""Characters that SentencePiece's `nmt_nfkc` maps to spaces, in addition to Unicode's spaces."""


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
    """Trains a SentencePiece model, and returns the content of its `spiece.model`.

    Normalisation, lowercasing and accent stripping are part of the model. `unigram` is the unigram
    language model of Kudo (2018, section 3.2), trained on at most `MAX_CHARACTERS` of the text;
    `sentencepiece_bpe` the BPE of Sennrich et al. (2016).

    Args:
      texts: Documents.
      kind: `unigram` or `sentencepiece_bpe`.
      vocab_size: Number of pieces; fewer if the text has fewer.
      lowercase: Whether text is case-folded.
      strip_accents: Whether accents are removed.
      normalization: `nfkc` (with SentencePiece's normalisation of white space) or `none`.
      character_coverage: Fraction of the text whose characters are in the alphabet.

    Raises:
      UserError: a setting is invalid, or `vocab_size` is too small for the text.
    """
    if normalization not in NORMALIZATIONS:
        raise UserError(
            f"normalization: got {normalization!r}, expected one of {', '.join(NORMALIZATIONS)} "
            "for SentencePiece"
        )
    is_unigram = kind == "unigram"
    sentences = _sample(_split_sentences(texts)) if is_unigram else _word_counts(texts)
    with tempfile.TemporaryDirectory() as folder:
        return _train(
            sentences,
            model_type="unigram" if is_unigram else "bpe",
            input_format="text" if is_unigram else "tsv",
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
            sentence_iterator=_record_failures(sentences, failures),
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


def _record_failures(sentences: Iterator[str], failures: list[BaseException]) -> Iterator[str]:
    """Records exceptions of the input, which SentencePiece would replace by a RuntimeError."""
    try:
        yield from sentences
    except BaseException as error:
        failures.append(error)
        raise


def _explain(message: str, settings: dict[str, str | int | float]) -> str:
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return (
            f"vocab_size too small for the special tokens and the alphabet: got "
            f"{settings['vocab_size']}, expected at least {too_small[1]}; increase it, or reduce "
            f"character_coverage below {settings['character_coverage']}"
        )
    return f"sentencepiece cannot train on this text: {' '.join(message.split())}"


def _split_sentences(texts: Iterable[str]) -> Iterator[str]:
    """Splits texts into lines, and long lines further: SentencePiece skips long sentences."""
    for text in texts:
        for line in text.splitlines():
            yield from _SENTENCE.findall(line)


def _sample(sentences: Iterable[str]) -> Iterator[str]:
    """Yields all sentences in order, or a random part of them if they are too long to be held.

    The part is the largest 1/2, 1/4, ... with at most `MAX_CHARACTERS`; equal texts give equal
    samples.
    """
    generator = random.Random(0)
    held: list[tuple[float, str]] = []
    size, fraction = 0, 1.0
    for sentence in sentences:
        rank = generator.random()
        if rank < fraction:
            held.append((rank, sentence))
            size += len(sentence)
        while size > MAX_CHARACTERS:
            fraction /= 2
            held = [entry for entry in held if entry[0] < fraction]
            size = sum(len(sentence) for _, sentence in held)
    if fraction < 1:
        print(
            f"note: the text has more than {MAX_CHARACTERS:,} characters; the unigram model is "
            f"trained on a sample of 1/{round(1 / fraction)} of it",
            file=sys.stderr,
        )
    held.reverse()
    while held:  # releases each sentence when SentencePiece has copied it
        yield held.pop()[1]


def _word_counts(texts: Iterable[str]) -> Iterator[str]:
    """Returns the training input of BPE: every distinct word with its count, as TSV."""
    for word, count in count_words(texts, _SENTENCE.findall).items():
        yield f"{word}\t{count}"


def _normalization(
    name: str, lowercase: bool, strip_accents: bool, folder: pathlib.Path
) -> dict[str, str]:
    """Returns the trainer's setting of a normalisation: a built-in rule, or a character table."""
    if not strip_accents and not (lowercase and name == "none"):
        fold = "_cf" if lowercase else ""
        return {"normalization_rule_name": f"nmt_nfkc{fold}" if name == "nfkc" else "identity"}
    table = folder / "rules.tsv"
    table.write_text(_rules(name, lowercase, strip_accents))
    return {"normalization_rule_tsv": str(table)}


def _rules(name: str, lowercase: bool, strip_accents: bool) -> str:
    """Returns a normalisation as TSV of code points and replacements, SentencePiece's format."""
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
    """Returns the normalisation of single characters; `nfkc` is SentencePiece's `nmt_nfkc`."""
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
    """Folds case one character to one, as SentencePiece does: German sharp s is unchanged."""
    forms = (character.casefold(), character.lower(), character)
    return next(form for form in forms if len(form) == 1)
