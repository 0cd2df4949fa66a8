"""Train vocabularies: WordPiece, byte-level BPE and words, reproducible between runs.

Trainers read the counts of the words of a text.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bertjax.errors import UserError
from bertjax.tokenizers import definitions
from bertjax.tokenizers.definitions import MAX_CHARACTERS_PER_WORD, Definition
from bertjax.tokenizers.special_tokens import BYTE_LEVEL_SPECIALS, WORDPIECE_SPECIALS

_MAX_PENDING_CHARACTERS = 32_000_000
_MAX_WORDS = 8_000_000

CHARACTER_COVERAGE = 0.9999
"""The share of the running text whose characters get pieces. The rest is one stray character in
ten thousand; SentencePiece's documentation uses 0.9995 for rich alphabets and 1 for small ones."""


def count_words(texts: Iterable[str], split: Callable[[str], Iterable[str]]) -> Counter[str]:
    """Counts words in one pass, in memory that the vocabulary of the text bounds, not its length.

    Stretches between white space are counted first and split into words only once each. When
    there are more than eight million different words, those seen once so far are forgotten.

    Args:
      texts: documents.
      split: splits a stretch without white space into words, as the tokenizer will.
    """
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    pending = 0
    for text in texts:
        chunks.update(text.split())
        pending += len(text)
        if pending > _MAX_PENDING_CHARACTERS:
            _add(words, chunks, split)
            chunks.clear()
            pending = 0
    _add(words, chunks, split)
    return words


def _add(words: Counter[str], chunks: Counter[str], split: Callable[[str], Iterable[str]]) -> None:
    for chunk, count in chunks.items():
        for word in split(chunk):
            words[word] += count
    if len(words) > _MAX_WORDS:
        for word in [word for word, count in words.items() if count == 1]:
            del words[word]


def covering_alphabet(words: Counter[str], coverage: float) -> list[str]:
    """The most frequent characters that make up this share of the text, in code point order."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    wanted = coverage * characters.total()
    alphabet, covered = [], 0
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted:
            break
        alphabet.append(character)
        covered += count
    return sorted(alphabet)


def repeated(words: Counter[str], characters_at_a_time: int = 20_000) -> Iterator[str]:
    """Writes every word as often as it was counted, separated by spaces, in long texts."""
    parts, length = [], 0
    for word, count in words.items():
        entry = word + " "
        while count:
            times = min(count, 1 + characters_at_a_time // len(entry))
            parts.append(entry * times)
            length += times * len(entry)
            count -= times
            if length >= characters_at_a_time:
                yield "".join(parts)
                parts, length = [], 0
    yield "".join(parts)


MIN_FREQUENCY = 2
"""A pair of pieces that occurs only once is never joined."""


def train_wordpiece(
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool,
    strip_accents: bool | None,
    normalization: str,
    character_coverage: float,
) -> Definition:
    """Learns a WordPiece vocabulary: special tokens, characters, then pieces in order of joining.

    Words that the tokenizer could never spell (a character outside the alphabet, too long) teach
    nothing.

    Raises:
      UserError: `vocab_size` has no room for the characters of the texts.
    """
    define = functools.partial(
        definitions.wordpiece,
        lowercase=lowercase,
        strip_accents=strip_accents,
        normalization=normalization,
    )
    words = count_words(texts, _splitter(define({"[UNK]": 0})))
    alphabet = covering_alphabet(words, character_coverage)
    for word in [word for word in words if not _can_be_spelled(word, set(alphabet))]:
        del words[word]
    inside = sorted({character for word in words for character in word[1:]})
    pieces = [*WORDPIECE_SPECIALS, *alphabet, *(f"##{character}" for character in inside)]
    if len(pieces) > vocab_size:
        raise UserError(
            f"vocab_size={vocab_size} has no room for the special tokens and the characters of "
            f"this text: expected {len(pieces)} or more, or a character_coverage below "
            f"{character_coverage}"
        )
    return define(_join_pairs(words, pieces, vocab_size))


def train_byte_level(
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool,
    strip_accents: bool,
    normalization: str,
) -> Definition:
    """Learns a byte-level BPE vocabulary: special tokens, 256 bytes, then pieces as joined.

    Raises:
      UserError: `vocab_size` has no room for the bytes.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(BYTE_LEVEL_SPECIALS) + len(alphabet)
    if vocab_size < smallest:
        raise UserError(
            f"vocab_size={vocab_size} has no room for the special tokens and the 256 bytes: "
            f"expected {smallest} or more"
        )
    define = functools.partial(
        definitions.byte_level,
        lowercase=lowercase,
        strip_accents=strip_accents,
        normalization=normalization,
    )
    library = Tokenizer.from_str(json.dumps(define({}, [])))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(BYTE_LEVEL_SPECIALS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    model = json.loads(library.to_str())["model"]
    return define(model["vocab"], model["merges"])


def train_words(
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool,
    strip_accents: bool,
    normalization: str,
) -> Definition:
    """Learns which words are the most frequent; they are numbered from there on.

    Raises:
      UserError: `vocab_size` has no room for a word.
    """
    define = functools.partial(
        definitions.words,
        lowercase=lowercase,
        strip_accents=strip_accents,
        normalization=normalization,
    )
    room = vocab_size - len(WORDPIECE_SPECIALS)
    if room < 1:
        raise UserError(
            f"vocab_size={vocab_size} has no room for a word beside the special tokens: expected "
            f"{len(WORDPIECE_SPECIALS) + 1} or more"
        )
    counts = count_words(texts, _splitter(define({"[UNK]": 0})))
    for special in WORDPIECE_SPECIALS:
        counts.pop(special, None)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:room]
    return define({word: number for number, word in enumerate([*WORDPIECE_SPECIALS, *frequent])})


def _splitter(definition: Definition) -> Callable[[str], list[str]]:
    """Cuts a stretch of text into words as the finished tokenizer will."""
    library = Tokenizer.from_str(json.dumps(definition))
    split = library.pre_tokenizer.pre_tokenize_str
    if library.normalizer is None:
        return lambda chunk: [word for word, _ in split(chunk)]
    normalize = library.normalizer.normalize_str
    return lambda chunk: [word for word, _ in split(normalize(chunk))]


def _can_be_spelled(word: str, alphabet: set[str]) -> bool:
    return len(word) <= MAX_CHARACTERS_PER_WORD and alphabet.issuperset(word)


def _join_pairs(words: Counter[str], pieces: list[str], vocab_size: int) -> dict[str, int]:
    """Adds pieces until the vocabulary is full or no pair is left that occurs often enough.

    The library numbers the characters inside words in an order that changes from run to run, and
    breaks ties between equally frequent pairs by these numbers. Tokens that are called special
    keep the numbers that they are given, so all characters are.
    """
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=pieces,
        show_progress=False,
    )
    library.train_from_iterator(repeated(words), trainer)
    vocabulary = library.get_vocab(with_added_tokens=False)
    return dict(sorted(vocabulary.items(), key=lambda item: item[1]))
