"""Labels of tables of choices."""

import pytest

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.tasks.choices import rows

XYZ = ["x", "y", "z"]


def read(choices, labels):
    columns = {"q": ["a"] * len(labels), "c": choices, "label": labels}
    locations = [f"t.jsonl:{row}" for row in range(1, 1 + len(labels))]
    return rows.read(Table("t.jsonl", columns, locations), ("q",), ("c",), "label")


def test_labels_of_choices_are_texts_indices_letters_or_names():
    arc = {"text": XYZ, "label": ["1", "2", "3"]}
    found = read([XYZ] * 3 + [arc], [1, "B", "1", "2"])
    assert found.answers.tolist() == [1] * 4
    assert read([XYZ, arc], ["y", "2"]).answers.tolist() == [1, 1]
    assert (found.contexts[0], found.questions[0]) == ("a", "_")


def test_a_column_of_labels_has_one_reading():
    numbers = [["4", "5", "6"], ["3", "2", "1"]]
    assert read(numbers, ["1", "1"]).answers.tolist() == [1, 1]
    assert read(numbers, ["5", "1"]).answers.tolist() == [1, 2]
    with pytest.raises(UserError, match=r"t\.jsonl:3: label: got 'B', .* in the whole column"):
        read([XYZ] * 3, ["x", "y", "B"])
    with pytest.raises(UserError, match=r"t\.jsonl:1: label: got 'a', which is choice 0 and 2"):
        read([["a", "b", "a"]], ["a"])
