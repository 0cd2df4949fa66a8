"""Answers of a table: their positions in the contexts."""

import math

import pytest

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.tasks.answers import dataset


def test_answers_are_found_in_their_contexts():
    squad = {"text": ["b"], "answer_start": [6]}
    columns = {
        "q": ["1", "2", "3"],
        "c": ["a b a b", "a b a b", "c"],
        "answers": [squad, "b", []],
    }
    table = Table("t.jsonl", columns, [f"t.jsonl:{row}" for row in range(1, 4)])
    found = dataset.read_questions(table, ("q", "c"), "answers")
    assert found.first_answers().tolist() == [[6, 7], [2, 3], [-1, -1]]
    assert found.context_of.tolist() == [0, 0, 1]
    assert found.impossible.tolist() == [False, False, True]


def read_starts(answers, starts):
    """The starts of answers in one context, from a column of starts."""
    columns = {"q": ["1"], "c": ["cat one cat two"], "answer": [answers], "answer_start": [starts]}
    return dataset.read_questions(Table("t", columns, ["t:1"]), ("q", "c"), "answer").answer_starts


@pytest.mark.parametrize(
    ("answers", "starts", "expected"),
    [
        *(("cat", start, (8,)) for start in (8, 8.0, "8", "8.0", [8])),
        *(("cat", start, (0,)) for start in (None, math.nan, "", -1, "-1.0", [])),
        *((["cat", "two"], start, (8, 12)) for start in ([8, 12], ["8.0", None])),
        (["cat", "two"], None, (0, 12)),
        ({"text": ["cat"], "answer_start": [8.0]}, None, (8,)),
    ],
)
def test_starts_are_whole_numbers_in_any_form(answers, starts, expected):
    assert read_starts(answers, starts) == [expected]


@pytest.mark.parametrize(
    ("answers", "starts", "message"),
    [
        ("cat", "8.5", "t:1: answer_start: got '8.5', expected a whole number"),
        ("cat", True, "answer_start: got 'True', expected a whole number"),
        (["cat", "two"], [8], "got 2 answers and 1 starts, expected the same number"),
        (["cat", "two"], 8, "got 2 answers and 1 starts"),
        ("cat", 1, "'cat', which is not in its context at character 1"),
    ],
)
def test_invalid_starts_are_refused(answers, starts, message):
    with pytest.raises(UserError, match=message):
        read_starts(answers, starts)
