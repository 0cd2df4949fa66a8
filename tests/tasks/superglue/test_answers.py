"""SuperGLUE metrics by hand and by scikit-learn; prediction files in the official format."""

import json

import numpy as np
import pytest
from sklearn.metrics import f1_score

from bertjax.errors import UserError
from bertjax.tasks import official
from bertjax.tasks.superglue import answers, files
from bertjax.tasks.superglue.records import Row
from bertjax.tasks.superglue.table import TASKS, superglue_task

# The right class for even rows: logits of two classes.
EVERY_SECOND = np.array([[0.0, 1.0], [1.0, 0.0]])


def rows_of(labels, keys=None):
    keys = keys or [(number,) for number in range(len(labels))]
    return [Row("", key, ("a", "b"), label) for key, label in zip(keys, labels, strict=True)]


def test_cb_has_accuracy_and_the_mean_f1_of_three_classes():
    labels, guesses = [0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 0]
    kind = superglue_task("cb").split("dev").answers
    predictions = {(number,): guess for number, guess in enumerate(guesses)}
    found = kind.score(rows_of(labels), predictions)
    assert found == {
        "accuracy": pytest.approx(4 / 7),
        "macro_f1": pytest.approx(f1_score(labels, guesses, average="macro")),
    }
    # A class that neither occurs nor is predicted counts as 0: (1 + 1 + 0) / 3.
    assert answers.macro_f1(np.array([0, 1]), np.array([0, 1])) == pytest.approx(2 / 3)


def test_multirc_has_f1_over_all_answers_and_exact_questions():
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 2), (0, 1, 3), (1, 2, 4), (1, 2, 5)]
    labels, guesses = [1, 0, 1, 1, 0, 1], [1, 0, 1, 0, 1, 1]
    logits = np.eye(2)[guesses]
    kind = answers.AnswerSets()
    rows = rows_of(labels, keys)
    found = kind.score(rows, kind.choose(rows, logits))
    # 3 of 4 predicted answers are right, 3 of 4 right answers are predicted; question 0 is exact.
    assert found == {"f1a": pytest.approx(0.75), "exact_match": pytest.approx(1 / 3)}


def test_record_has_the_best_token_f1_and_exact_match():
    kind = answers.EntityAnswers()
    rows = [
        Row("", (5,), ("", ""), 0, "The Berg", ("Anna Berg", "Berg of Oslo")),
        Row("", (5,), ("", ""), 0, "Oslo", ("Anna Berg", "Berg of Oslo")),
        Row("", (6,), ("", ""), 1, "Lyon", ("the lyon!",)),
        Row("", (6,), ("", ""), 0, "Oslo", ("the lyon!",)),
    ]
    # Probability counts, not the logit of "right" alone.
    logits = np.array([[0.0, 1.0], [3.0, 2.0], [1.0, 1.5], [0.0, 0.1]])
    chosen = kind.choose(rows, logits)
    assert chosen == {(5,): "The Berg", (6,): "Lyon"}
    # "berg" and "anna berg": precision 1, recall 1/2; the other answer gives 1/2.
    found = kind.score(rows, chosen)
    assert found == {"f1": pytest.approx((2 / 3 + 1) / 2), "exact_match": 0.5}


LINES = {
    "boolq": [{"idx": 0, "label": "true"}, {"idx": 1, "label": "false"}],
    "cb": [
        {"idx": 0, "label": "contradiction"},
        {"idx": 1, "label": "entailment"},
        {"idx": 2, "label": "contradiction"},
    ],
    "copa": [{"idx": 0, "label": 1}, {"idx": 1, "label": 0}],
    "multirc": [
        {
            "idx": 4,
            "passage": {
                "questions": [
                    {
                        "idx": 7,
                        "answers": [
                            {"idx": 20, "label": 1},
                            {"idx": 21, "label": 0},
                            {"idx": 22, "label": 1},
                        ],
                    },
                    {"idx": 8, "answers": [{"idx": 23, "label": 0}, {"idx": 24, "label": 1}]},
                ]
            },
        }
    ],
    "record": [{"idx": 11, "label": "Anna Berg"}, {"idx": 12, "label": "Oslo"}],
    "rte": [{"idx": 0, "label": "not_entailment"}, {"idx": 1, "label": "entailment"}],
    "wic": [{"idx": 0, "label": "true"}],
    "wsc": [{"idx": 0, "label": "True"}, {"idx": 1, "label": "False"}],
}
SCORES = {
    "boolq": {"accuracy": 1.0, "examples": 2},
    "cb": {"accuracy": 0.0, "macro_f1": 0.0, "examples": 3},
    "copa": {"accuracy": 0.0, "examples": 2},
    "multirc": {"f1a": 1.0, "exact_match": 1.0, "examples": 5},
    "record": {"f1": 0.0, "exact_match": 0.0, "examples": 2},
    "rte": {"accuracy": 0.0, "examples": 2},
    "wic": {"accuracy": 1.0, "examples": 1},
    "wsc": {"accuracy": 1.0, "examples": 2},
}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_predictions_have_the_official_words(data, tmp_path, task):
    kind = task.split("test").answers
    rows = files.read(str(data), task)["test"].rows
    logits = np.resize(EVERY_SECOND, (len(rows), 2))
    # Every third column of CB is never chosen.
    logits = np.pad(logits, ((0, 0), (0, len(kind.labels) - 2)), constant_values=-1.0)
    path = tmp_path / f"{task.folder}.jsonl"
    files.write_predictions(path, kind, kind.choose(rows, logits))
    assert [json.loads(line) for line in path.read_text().splitlines()] == LINES[task.name]
    assert files.read_predictions(path, kind) == kind.choose(rows, logits)
    references = str(data / task.folder / "val.jsonl")
    found = official.score(f"superglue_{task.name}", references, str(path))
    assert found == SCORES[task.name]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("boolq", [{"idx": 0, "label": "True"}] * 2, r"label: got 'True', expected one of false, "),
        ("boolq", [{"idx": 0, "label": "true"}] * 2, r":2: idx 0 occurs twice; remove one line"),
        ("boolq", [{"idx": 0, "label": "true"}], r"no prediction for 1 of 2 examples .* is '1'"),
        ("boolq", [{"idx": 0, "label": True}], r"'label': got true or false, expected text"),
        ("copa", [{"idx": 0, "label": 2}], r"label: got 2, expected one of 0, 1"),
        (
            "multirc",
            [
                {
                    "idx": 4,
                    "passage": {
                        "questions": [{"idx": 7, "answers": [{"idx": 20, "label": 2}]}],
                    },
                }
            ],
            r"label: got 2, expected 0 or 1",
        ),
        ("record", [{"idx": 11}], r"has no 'label': got 'idx', expected a line of a SuperGLUE pre"),
    ],
)
def test_malformed_predictions_are_one_line(data, put, tmp_path, name, lines, message):
    put(tmp_path / "p.jsonl", lines)
    references = str(data / superglue_task(name).folder / "val.jsonl")
    with pytest.raises(UserError, match=message):
        official.score(f"superglue_{name}", references, str(tmp_path / "p.jsonl"))


def test_references_without_labels_are_refused(data, put, tmp_path):
    put(tmp_path / "p.jsonl", LINES["boolq"])
    with pytest.raises(UserError, match=r"no labels in .*test.jsonl: expected a labelled file"):
        official.score(
            "superglue_boolq", str(data / "BoolQ" / "test.jsonl"), str(tmp_path / "p.jsonl")
        )


def test_the_broad_diagnostic_set_has_matthews_correlation(put, tmp_path):
    classes = ["entailment", "not_entailment"]
    labels, guesses = [0, 0, 1, 1], [0, 1, 1, 1]
    examples = [{"sentence1": "a", "sentence2": "b", "label": classes[n]} for n in labels]
    put(tmp_path / "AX-b.jsonl", [row | {"idx": n} for n, row in enumerate(examples)])
    put(tmp_path / "p", [{"idx": n, "label": classes[g]} for n, g in enumerate(guesses)])
    found = official.score("superglue_rte", str(tmp_path / "AX-b.jsonl"), str(tmp_path / "p"))
    # (1 * 2 - 1 * 0) / sqrt(1 * 3 * 2 * 2)
    assert found == {"matthews": pytest.approx(2 / 12**0.5), "examples": 4}
