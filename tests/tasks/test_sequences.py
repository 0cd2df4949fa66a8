"""Sequences of one or two texts: arithmetic by hand, and BERT's truncation."""

import types

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks import sequences
from bertjax.tokenizers import tokenizer


def letters(cls_id=1, sep_id=2, pair_separators=1):
    """A tokenizer with one token per letter: a is 10, b is 11, ..."""
    return types.SimpleNamespace(
        cls_id=cls_id,
        sep_id=sep_id,
        pad_id=7,
        pair_separators=pair_separators,
        encode_batch=lambda texts: [[ord(letter) - 87 for letter in text] for text in texts],
    )


def test_two_texts_by_hand():
    encoded = sequences.encode((["abc", "a"], ["d", "ef"]), letters(), 8)
    rows = encoded.rows(np.array([1, 0]), 9)
    assert rows["input_ids"].tolist() == [
        [1, 10, 2, 14, 15, 2, 7, 7, 7],
        [1, 10, 11, 12, 2, 13, 2, 7, 7],
    ]
    assert rows["segment_ids"].tolist() == [[0, 0, 0, 1, 1, 1, 0, 0, 0], [0] * 5 + [1, 1, 0, 0]]
    assert rows["attention_mask"].tolist() == [[True] * 6 + [False] * 3, [True] * 7 + [False] * 2]
    assert rows["input_ids"].dtype == rows["segment_ids"].dtype == np.int32
    assert rows["attention_mask"].dtype == bool


def test_two_separators_between_texts():
    encoded = sequences.encode((["abc"], ["de"]), letters(pair_separators=2), 8)
    assert encoded.rows(np.array([0]), 8)["input_ids"].tolist() == [[1, 10, 11, 2, 2, 13, 14, 2]]
    alone = sequences.encode((["abc"],), letters(pair_separators=2), 5)
    assert alone.rows(np.array([0]), 5)["input_ids"].tolist() == [[1, 10, 11, 12, 2]]
    with pytest.raises(UserError, match="expected >= 6"):
        sequences.encode((["abc"], ["de"]), letters(pair_separators=2), 5)


def test_one_text_by_hand():
    encoded = sequences.encode((["abcdef", "b", ""],), letters(), 5)
    rows = encoded.rows(np.arange(3), 5)
    assert rows["input_ids"].tolist() == [[1, 10, 11, 12, 2], [1, 11, 2, 7, 7], [1, 2, 7, 7, 7]]
    assert not rows["segment_ids"].any()
    assert encoded.truncated.tolist() == [True, False, False]


def test_two_texts_that_are_too_long():
    encoded = sequences.encode((["abcdefgh"], ["ij"]), letters(), 9)
    assert encoded.rows(np.array([0]), 9)["input_ids"].tolist() == [
        [1, 10, 11, 12, 13, 2, 18, 19, 2]
    ]
    both = sequences.encode((["abcdefgh", "ab"], ["ij", "ij"]), letters(), 9)
    assert both.truncated.tolist() == [True, False]


def bert_truncation(first, second, budget):
    """The published loop."""
    while first + second > budget:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_truncation_equals_the_published_loop():
    sizes = [(a, b, budget) for a in range(14) for b in range(14) for budget in range(14)]
    for budget in range(14):
        first, second = np.array([(a, b) for a, b, c in sizes if c == budget]).T
        kept = np.stack(sequences.truncate_longer(first, second, budget), axis=1)
        expected = [bert_truncation(a, b, budget) for a, b in zip(first, second, strict=True)]
        assert kept.tolist() == [list(pair) for pair in expected]


def test_only_the_first_text_is_truncated():
    columns = (["abcdef", "abc", "a"], ["ghi", "g", "ghijklmn"])
    encoded = sequences.encode(columns, letters(), 8, truncate="first")
    assert encoded.rows(np.arange(3), 8)["input_ids"].tolist() == [
        [1, 10, 11, 2, 16, 17, 18, 2],
        [1, 10, 11, 12, 2, 16, 2, 7],
        [1, 2, 16, 17, 18, 19, 20, 2],  # the second does not fit alone
    ]
    sizes = np.array([(a, b) for a in range(14) for b in range(14)]).T
    for budget in range(14):
        first, second = sequences.truncate_first(*sizes, budget)
        assert (first + second == np.minimum(sizes.sum(axis=0), budget)).all()
        assert ((second == sizes[1]) | (first == 0)).all()


def test_repeated_texts_are_tokenized_once():
    tokens, seen = letters(), []
    encode_batch = tokens.encode_batch
    tokens.encode_batch = lambda texts: seen.extend(texts) or encode_batch(texts)
    encoded = sequences.encode((["ab", "ab", "c"], ["d", "e", "d"]), tokens, 8)
    assert seen == ["ab", "c", "d", "e"]
    assert encoded.rows(np.arange(3), 6)["input_ids"].tolist() == [
        [1, 10, 11, 2, 13, 2],
        [1, 10, 11, 2, 14, 2],
        [1, 12, 2, 13, 2, 7],
    ]


def test_tokenizers_without_the_special_tokens_are_refused():
    with pytest.raises(UserError, match="has no \\[CLS\\] and \\[SEP\\] tokens"):
        sequences.encode((["a"],), letters(cls_id=None), 8)


@pytest.mark.parametrize(("texts", "least"), [(1, 3), (2, 5)])
def test_too_short_sequences_are_refused(texts, least):
    columns = tuple(["abc"] for _ in range(texts))
    assert len(sequences.encode(columns, letters(), least)) == 1
    with pytest.raises(UserError, match=f"no room for {texts} text\\(s\\): expected >= {least}"):
        sequences.encode(columns, letters(), least - 1)


@pytest.mark.parametrize(("kind", "separators"), [("bpe", 2), ("wordpiece", 1), ("unigram", 1)])
def test_separators_of_each_kind_of_tokenizer(kind, separators):
    learned = tokenizer.train(["the cat sees a dog"] * 20, kind=kind, vocab_size=300)
    assert learned.pair_separators == separators
    encoded = sequences.encode((["the cat"], ["a dog"]), learned, 40)
    row = encoded.rows(np.array([0]), 40)["input_ids"][0]
    assert np.sum(row == learned.sep_id) == separators + 1
