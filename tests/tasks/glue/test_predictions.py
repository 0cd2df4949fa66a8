"""The evaluation server's format, byte for byte."""

import numpy as np
import pytest

from bertjax.tasks.glue import predictions as glue_predictions
from bertjax.tasks.glue.table import glue_task


def written(tmp_path, name, indices, predictions):
    path = tmp_path / "new" / "folder" / "X.tsv"
    glue_predictions.write(path, glue_task(name), indices, np.array(predictions))
    return path.read_bytes()


def test_classes_are_spelled_as_in_the_released_files(tmp_path):
    assert written(tmp_path, "mnli", ["0", "5", "9"], [2, 0, 1]) == (
        b"index\tprediction\n0\tcontradiction\n5\tentailment\n9\tneutral\n"
    )
    assert written(tmp_path, "rte", ["0", "1"], [0, 1]) == (
        b"index\tprediction\n0\tentailment\n1\tnot_entailment\n"
    )
    assert written(tmp_path, "cola", ["0", "1"], [1, 0]) == b"index\tprediction\n0\t1\n1\t0\n"


def test_scores_are_clipped_to_the_scale_and_have_three_decimals(tmp_path):
    assert written(tmp_path, "stsb", list("0123"), [-0.2, 2.34567, 5.2, 5.0]) == (
        b"index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n3\t5.000\n"
    )


def test_a_prediction_for_each_example(tmp_path):
    with pytest.raises(ValueError, match="1 predictions for 2 examples"):
        written(tmp_path, "cola", ["0", "1"], [1])
