"""Datasets of tagged words: scores of classes."""

import json

import numpy as np


def test_tags_that_are_classes_have_a_confusion_matrix(read_dataset, tmp_path):
    row = json.dumps({"words": "the name x", "pos_tags": "DET NOUN NOUN"})
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text(row)
    dataset = read_dataset("tags")
    dataset.write("dev", np.zeros((1, 32), np.int64), tmp_path / "out")
    matrix = (tmp_path / "out" / "dev_confusion.tsv").read_text().splitlines()
    assert matrix == ["true \\ predicted\tDET\tNOUN", "DET\t1\t0", "NOUN\t2\t0"]
    assert "2 of 2  NOUN -> DET" in (tmp_path / "out" / "dev_classes.txt").read_text()
