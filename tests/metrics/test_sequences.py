"""Metrics of sequence tasks by hand, and against scikit-learn."""

import numpy as np
import pytest
import scipy.special
import sklearn.metrics

from bertjax.metrics import sequences
from bertjax.metrics.sequences import METRICS, MULTI_LABEL, SINGLE_LABEL

LOGITS = np.array([[3, 0, 0, 0], [0, 3, 0, 0], [0, 3, 1, 0], [0, 0, 3, 0], [3, 1, 2, 0]], float)
CLASSES = np.array([0, 1, 2, 2, 1])
"""Predicted are 0, 1, 1, 2, 0; the fourth class neither occurs nor is predicted."""


def test_classes_by_hand():
    values = {n: METRICS[n].compute(LOGITS, CLASSES) for n in METRICS if n in PER_CLASS}
    # Precision 1/2, 1/2, 1; recall 1, 1/2, 1/2; F1 2/3, 1/2, 2/3 of classes with 1, 2, 2 examples.
    assert values == pytest.approx(PER_CLASS)
    matrix = sequences.confusion(LOGITS, CLASSES)
    assert matrix.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]


PER_CLASS = {
    "accuracy": 3 / 5,
    "balanced_accuracy": 2 / 3,
    "macro_precision": 2 / 3,
    "macro_recall": 2 / 3,
    "macro_f1": 11 / 18,
    "micro_f1": 3 / 5,
    "weighted_f1": (2 / 3 + 2 * 1 / 2 + 2 * 2 / 3) / 5,
}


def test_several_labels_by_hand():
    logits = np.array([[1, 1, -1], [-1, 1, -1], [1, -1, -1]], float)
    labels = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]], bool)
    # True positives 3 of 4 predicted and 4 true; only the second example is right as a whole.
    present = {n: METRICS[n].compute(logits, labels) for n in ("micro_f1", "accuracy", "macro_f1")}
    expected = {"micro_f1": 6 / 8, "accuracy": 1 / 3, "macro_f1": (1 + 2 / 3 + 0) / 3}
    assert present == pytest.approx(expected)


def test_a_single_label_of_several_by_hand():
    labels = np.array([[1], [0], [0], [0]], bool)
    logits = np.array([[1], [-1], [-1], [1]], float)
    measures = [values.tolist() for values in sequences.per_class(logits, labels)]
    assert measures == [[1 / 2], [1], [pytest.approx(2 / 3)], [1]]


@pytest.mark.parametrize("kind", [SINGLE_LABEL, MULTI_LABEL])
def test_rankings_equal_scikit_learn(kind):
    generator = np.random.default_rng(2)
    logits = generator.normal(size=(211, 3))
    classes = (logits + generator.normal(size=(211, 3))).argmax(axis=1)
    labels = classes if kind == SINGLE_LABEL else (logits + generator.normal(size=logits.shape)) > 0
    probs = scipy.special.softmax(logits, axis=1) if kind == SINGLE_LABEL else logits
    auc = sklearn.metrics.roc_auc_score(labels, probs, multi_class="ovr", average="macro")
    assert METRICS["auc"].compute(logits, labels) == pytest.approx(auc)
    precision = sklearn.metrics.average_precision_score(labels, probs, average="macro")
    assert METRICS["average_precision"].compute(logits, labels) == pytest.approx(precision)
    f1 = sklearn.metrics.f1_score(
        labels, sequences.predict_classes(logits, labels), average="macro"
    )
    assert METRICS["macro_f1"].compute(logits, labels) == pytest.approx(f1)


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_rankings_distinguish_probabilities_that_round_to_one(name):
    logits = np.array([[0, 17], [0, 18], [0, 19], [0, 20]], np.float32)
    classes = np.array([0, 0, 1, 1])
    assert METRICS[name].compute(logits, classes) == 1.0
    assert METRICS[name].compute(logits[:, 1:], classes[:, None] > 0) == 1.0


def test_scores_by_hand():
    scores, references = np.array([1.0, 2.0, 6.0]), np.array([1.0, 4.0, 4.0])
    assert METRICS["mean_absolute_error"].compute(scores, references) == pytest.approx(4 / 3)
    present = METRICS["root_mean_squared_error"].compute(scores, references)
    assert present == pytest.approx(np.sqrt(8 / 3))
    # Squared error 8 over that of the mean, 4 + 1 + 1.
    assert METRICS["r2"].compute(scores, references) == pytest.approx(1 - 8 / 6)


def test_undefined_metrics_are_zero():
    alone = np.zeros(2, int)
    assert METRICS["auc"].compute(np.zeros((2, 2)), alone) == 0.0
    assert METRICS["r2"].compute(np.ones(2), np.ones(2)) == 0.0
