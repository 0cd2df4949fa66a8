"""Train WordPiece, byte-level BPE and word vocabularies, reproducibly."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bertjax.errors import UserError
from bertjax.tokenizers.definitions import MAX_CHARACTERS_PER_WORD, Definition
from bertjax.tokenizers.special_tokens import BYTE_LEVEL_SPECIALS, WORDPIECE_SPECIALS

_MAX_PENDING_CHARACTERS = 32_000_000
_MAX_WORDS = 8_000_000

CHARACTER_COVERAGE = 0.9999
"""Fraction of the running text whose characters are in the alphabet. SentencePiece's documentation
recommends 0.9995 for large alphabets and 1 for small ones."""


def count_words(texts: Iterable[str], split: Callable[[str], Iterable[str]]) -> Counter[str]:
    """Counts words in one pass, in memory bounded by the number of distinct words.

    Strings between white space are counted first, so that each is split into words only once.
    Above eight million distinct words, those counted once are removed.

    Args:
      texts: Documents.
      split: Splits a string without white space into words, as the tokenizer does.
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


def select_alphabet(words: Counter[str], coverage: float) -> list[str]:
    """Returns the most frequent characters that cover a fraction of the text, by code point."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    target = coverage * characters.total()
    alphabet, covered = [], 0
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if covered >= target:
            break
        alphabet.append(character)
        covered += count
    return sorted(alphabet)


def repeat_words(words: Counter[str], max_characters: int = 20_000) -> Iterator[str]:
    """Yields texts in which every word occurs as often as counted, separated by spaces."""
    parts, length = [], 0
    for word, count in words.items():
        entry = word + " "
        while count:
            times = min(count, 1 + max_characters // len(entry))
            parts.append(entry * times)
            length += times * len(entry)
            count -= times
            if length >= max_characters:
                yield "".join(parts)
                parts, length = [], 0
    yield "".join(parts)


MIN_FREQUENCY = 2
"""Pairs of pieces that occur less often are not merged."""


def train_wordpiece(
    texts: Iterable[str],
    vocab_size: int,
    define: Callable[..., Definition],
    *,
    character_coverage: float,
) -> Definition:
    """Trains a WordPiece vocabulary: special tokens, characters, then pieces in order of merging.

    As in Hugging Face's trainer, pieces are merged by frequency (Sennrich et al. 2016), not by
    likelihood (Schuster & Nakajima 2012). Words that the tokenizer cannot spell, with a character
    outside the alphabet or too long, are ignored.

    Args:
      texts: Documents.
      vocab_size: Number of pieces, including special tokens; fewer if no pair is frequent enough.
      define: `definitions.wordpiece` with the normalisation of the text.
      character_coverage: Fraction of the text whose characters are in the alphabet.

    Raises:
      UserError: `vocab_size` is too small for the alphabet.
    """
    words = count_words(texts, splitter(define({"[UNK]": 0})))
    alphabet = select_alphabet(words, character_coverage)
    characters = frozenset(alphabet)
    for word in [word for word in words if not _is_spellable(word, characters)]:
        del words[word]
    inside = sorted({character for word in words for character in word[1:]})
    pieces = [*WORDPIECE_SPECIALS, *alphabet, *(f"##{character}" for character in inside)]
    if len(pieces) > vocab_size:
        raise UserError(
            f"vocab_size too small for the special tokens and the alphabet: got {vocab_size}, "
            f"expected at least {len(pieces)}; increase it, or reduce character_coverage below "
            f"{character_coverage}"
        )
    return define(_merge_pairs(words, pieces, vocab_size))


def train_byte_level(
    texts: Iterable[str], vocab_size: int, define: Callable[..., Definition]
) -> Definition:
    """Trains a byte-level BPE vocabulary: special tokens, 256 bytes, then pieces as merged.

    Args:
      texts: Documents.
      vocab_size: Number of pieces, including special tokens; fewer if no pair is frequent enough.
      define: `definitions.byte_level` with the normalisation of the text.

    Raises:
      UserError: `vocab_size` is too small for the 256 bytes.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(BYTE_LEVEL_SPECIALS) + len(alphabet)
    if vocab_size < smallest:
        raise UserError(
            f"vocab_size too small for the special tokens and the 256 bytes: got {vocab_size}, "
            f"expected at least {smallest}"
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
    texts: Iterable[str], vocab_size: int, define: Callable[..., Definition]
) -> Definition:
    """Trains a word vocabulary: special tokens, then the most frequent words.

    Args:
      texts: Documents.
      vocab_size: Number of words, including special tokens; fewer if the text has fewer.
      define: `definitions.words` with the normalisation of the text.

    Raises:
      UserError: `vocab_size` is too small for a single word.
    """
    num_words = vocab_size - len(WORDPIECE_SPECIALS)
    if num_words < 1:
        raise UserError(
            f"vocab_size too small for a word in addition to the special tokens: got {vocab_size}, "
            f"expected at least {len(WORDPIECE_SPECIALS) + 1}"
        )
    counts = count_words(texts, splitter(define({"[UNK]": 0})))
    for special in WORDPIECE_SPECIALS:
        counts.pop(special, None)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:num_words]
    return define({word: number for number, word in enumerate([*WORDPIECE_SPECIALS, *frequent])})


def splitter(definition: Definition) -> Callable[[str], list[str]]:
    """Returns the tokenizer's splitting of a string into words."""
    library = Tokenizer.from_str(json.dumps(definition))
    split = library.pre_tokenizer.pre_tokenize_str
    if library.normalizer is None:
        return lambda chunk: [word for word, _ in split(chunk)]
    normalize = library.normalizer.normalize_str
    return lambda chunk: [word for word, _ in split(normalize(chunk))]


def _is_spellable(word: str, alphabet: frozenset[str]) -> bool:
    return len(word) <= MAX_CHARACTERS_PER_WORD and alphabet.issuperset(word)


def _merge_pairs(words: Counter[str], pieces: list[str], vocab_size: int) -> dict[str, int]:
    """Merges pairs until the vocabulary is full or no pair is frequent enough.

    The library's trainer assigns ids to characters in an order that varies between runs, and breaks
    ties between equally frequent pairs by these ids. Passing all characters as special tokens fixes
    their ids.
    """
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=pieces,
        show_progress=False,
    )
    library.train_from_iterator(repeat_words(words), trainer)
    vocabulary = library.get_vocab(with_added_tokens=False)
    return dict(sorted(vocabulary.items(), key=lambda item: item[1]))
