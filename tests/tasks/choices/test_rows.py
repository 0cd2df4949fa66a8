"""Labels of tables of choices."""

from bertjax.corpus.format import Table
from bertjax.tasks.choices import rows


def test_labels_of_choices_are_texts_indices_letters_or_names():
    arc = {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}
    columns = {
        "q": ["a"] * 5,
        "c": [["x", "y", "z"]] * 4 + [arc],
        "label": ["y", 1, "B", "1", "2"],
    }
    table = Table("t.jsonl", columns, [f"t.jsonl:{row}" for row in range(1, 6)])
    found = rows.read(table, ("q",), ("c",), "label")
    assert found.answers.tolist() == [1] * 5
    assert (found.contexts[0], found.questions[0]) == ("a", "_")
