"""Word counts for tokenizer training, by hand."""

from collections import Counter

import pytest

from bertjax.tokenizers import training
from bertjax.tokenizers.training import count_words, repeat_words, select_alphabet


def halves(chunk: str) -> list[str]:
    return [part for part in chunk.partition("-")[::2] if part]


def test_chunks_are_counted_and_then_split():
    counts = count_words(["a-b a\nc", "a-b\t\u2003c-"], halves)
    assert counts == {"a": 3, "b": 2, "c": 2}


def test_counts_do_not_depend_on_when_chunks_are_split(monkeypatch):
    texts = ["a-b a c", "b-c d a-b", "e a-b"]
    expected = count_words(texts, halves)
    monkeypatch.setattr(training, "_MAX_PENDING_CHARACTERS", 6)
    assert count_words(texts, halves) == expected


def test_rare_words_are_dropped_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(training, "_MAX_PENDING_CHARACTERS", 6)
    monkeypatch.setattr(training, "_MAX_WORDS", 2)
    assert count_words(["a a b c", "a b d d"], lambda chunk: [chunk]) == {"a": 3, "d": 2}


@pytest.mark.parametrize(
    ("coverage", "alphabet"),
    [
        (0.6, ["b"]),
        (0.61, ["a", "b"]),
        (0.9, ["a", "b"]),
        (0.91, ["a", "b", "c"]),
        (1, list("abcd")),
    ],
)
def test_the_alphabet_covers_the_requested_share_of_the_text(coverage, alphabet):
    # b 12, a 6, c 1, d 1 of 20 characters; c comes before d among equals.
    words = Counter({"bba": 6, "c": 1, "d": 1})
    assert select_alphabet(words, coverage) == alphabet


@pytest.mark.parametrize("max_characters", [1, 7, 1000])
def test_words_are_repeated_by_their_counts(max_characters):
    words = Counter({"a": 5, "bcd": 13, "e": 1})
    texts = list(repeat_words(words, max_characters))
    assert Counter("".join(texts).split()) == words
    assert all(len(text) <= max_characters + len("bcd ") for text in texts)
