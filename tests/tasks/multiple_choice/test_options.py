"""Multiple-choice questions as sequences: segments and truncation."""

import types

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks import sequences
from bertjax.tasks.multiple_choice import dataset
from bertjax.tasks.multiple_choice.files import Choices
from bertjax.tokenizers import tokenizer


def letters():
    """A tokenizer with one token per letter: a is 10, b is 11, ...; spaces have none."""
    return types.SimpleNamespace(
        cls_id=1,
        sep_id=2,
        pad_id=7,
        pair_separators=1,
        encode_batch=lambda texts: [[ord(c) - 87 for c in t.replace(" ", "")] for t in texts],
    )


def make_choices(contexts, questions, options):
    count = len(contexts)
    return Choices(contexts, questions, options, None, list(map(str, range(count))), [""] * count)


@pytest.mark.parametrize(
    ("question", "option", "expected"),
    [
        ("Who came?", "Ann.", "Who came? Ann."),
        ("We read _ today.", "a book", "We read a book today."),
        ("It is ____.", r"\1 cold", r"It is \1 cold."),
        ("_ and _", "a", "a and a"),
    ],
)
def test_an_option_replaces_the_blank(question, option, expected):
    assert dataset.with_option(question, option) == expected


def test_the_options_of_a_question_are_consecutive():
    choices = make_choices(["a", "b"], ["k", "l_m"], [("p", "q", "r"), ("s", "t", "u")])
    encoded = dataset.encode(choices, letters(), 9, dataset="race")
    batch = encoded.rows(np.arange(6), 7)
    assert batch["input_ids"].tolist() == [
        [1, 10, 2, 20, 25, 2, 7],
        [1, 10, 2, 20, 26, 2, 7],
        [1, 10, 2, 20, 27, 2, 7],
        [1, 11, 2, 21, 28, 22, 2],
        [1, 11, 2, 21, 29, 22, 2],
        [1, 11, 2, 21, 30, 22, 2],
    ]
    assert (
        batch["segment_ids"].tolist() == [[0, 0, 0, 1, 1, 1, 0]] * 3 + [[0, 0, 0, 1, 1, 1, 1]] * 3
    )


def test_articles_are_truncated_before_questions():
    choices = make_choices(["abcdef"], ["kl"], [("pq", "p", "pqrstu", "")])
    encoded = dataset.encode(choices, letters(), 9, dataset="race")
    assert encoded.rows(np.arange(4), 9)["input_ids"].tolist() == [
        [1, 10, 11, 2, 20, 21, 25, 26, 2],
        [1, 10, 11, 12, 2, 20, 21, 25, 2],
        [1, 2, 20, 21, 25, 26, 27, 28, 2],  # too long alone
        [1, 10, 11, 12, 13, 2, 20, 21, 2],
    ]


def test_the_longer_sentence_of_swag_is_truncated():
    choices = make_choices(["abcdef"], ["k"], [("pqrst", "p")])
    encoded = dataset.encode(choices, letters(), 9, dataset="swag")
    assert encoded.rows(np.arange(2), 9)["input_ids"].tolist() == [
        [1, 10, 11, 12, 2, 20, 25, 26, 2],
        [1, 10, 11, 12, 13, 2, 20, 25, 2],
    ]
    blank = dataset.encode(make_choices(["a"], ["k_"], [("p",)]), letters(), 9, dataset="swag")
    assert blank.rows(np.arange(1), 7)["input_ids"].tolist() == [[1, 10, 2, 20, 8, 25, 2]]


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_sequences_equal_those_of_text_pairs(kind):
    text = "the cat sees a dog and the dog sees"
    learned = tokenizer.train([text] * 20, kind=kind, vocab_size=300)
    choices = make_choices(["the cat"], ["a dog"], [("sees", "sings")])
    options = {"cls_last": True, "max_chars_per_word": 6 if kind == "words" else 0}
    found = dataset.encode(choices, learned, 30, dataset="race", **options)
    plain = sequences.encode(
        (["the cat"] * 2, ["a dog sees", "a dog sings"]), learned, 30, **options
    ).rows(np.arange(2), 30)
    for name, values in found.rows(np.arange(2), 30).items():
        assert np.array_equal(values, plain[name]), name


def test_an_unknown_data_set():
    with pytest.raises(UserError, match=r"unknown multiple-choice data set 'rase': did you mean"):
        dataset.encode(make_choices([], [], []), letters(), 9, dataset="rase")
