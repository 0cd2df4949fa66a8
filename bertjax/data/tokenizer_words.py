"""Counts the words of a text, which is all that a vocabulary is learned from."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

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
