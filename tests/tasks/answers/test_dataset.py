"""Answers of a table: their positions in the contexts."""

from bertjax.corpus.format import Table
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
