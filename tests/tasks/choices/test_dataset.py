"""Datasets of choices: questions with different numbers of choices."""

import json

import numpy as np


def test_questions_may_have_fewer_choices_than_others(read_dataset, tmp_path):
    rows = [
        {"question": "a", "a": "x", "b": "y", "c": None, "answer": "B"},
        {"question": "a", "a": "x", "b": "y", "c": "z", "answer": "A"},
    ]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = read_dataset("choices", choices=("a", "b", "c"))
    assert "(2 to 3 choices)" in dataset.findings[0]
    assert dataset.task_fields["num_choices"] == 3
    assert dataset.batches["train"].labels.tolist() == [0, 1, -1, 1, 0, 0]
    scores = np.array([1, 2, 3, 1, 2, 3], np.float32)
    assert dataset.score("dev", scores) == {"accuracy": 0.5}
    dataset.write("dev", scores, tmp_path / "out")
    written = list(map(json.loads, (tmp_path / "out" / "dev.jsonl").read_text().splitlines()))
    assert [row["choices"] for row in written] == [["x", "y"], ["x", "y", "z"]]
    assert [row["answer"] for row in written] == ["y", "z"]
