"""Metrics of sequence classification and regression by name, and tables of the errors per class.

A metric takes the outputs of a head first and references second: logits [n C] and class indices
[n], or for several labels per example a bool for each [n C], or scores [n] of both. It returns a
fraction, or for a regression a number in the unit of the labels. Means over classes leave out those
that neither occur nor are predicted. Where a formula divides by zero the result is 0.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int, Num
from scipy.special import expit, logsumexp, softmax

from bertjax.metrics import classification

SINGLE_LABEL = "single_label_classification"
MULTI_LABEL = "multi_label_classification"
REGRESSION = "regression"
PROBLEM_TYPES = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)
"""Problem types, the values of `problem_type` in the `config.json` of transformers."""

Outputs = Num[np.ndarray, "n *more"]
References = Num[np.ndarray, "n *more"] | Bool[np.ndarray, "n C"]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of sequence tasks.

    Attributes:
      compute: Function of outputs and references.
      problem_types: Those for which it is defined.
      is_error: Whether lower values are better.
      num_labels: The number of classes that it requires; 0 for any.
    """

    compute: Callable[[Outputs, References], float]
    problem_types: tuple[str, ...]
    is_error: bool = False
    num_labels: int = 0


def probabilities(problem_type: str, logits: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    """Probability of each class: a softmax for one label per example, else a sigmoid of each."""
    return softmax(logits, axis=-1) if problem_type == SINGLE_LABEL else expit(logits)


def predict_classes(logits: Outputs, references: References) -> np.ndarray:
    """Predicted classes, in the form of the references: the most likely one, or all above 1/2."""
    return logits.argmax(axis=-1) if references.ndim == 1 else logits >= 0


def per_class(
    logits: Float[np.ndarray, "n C"], references: References
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall, F1 and number of examples of each class."""
    from sklearn.metrics import precision_recall_fscore_support

    predictions = predict_classes(logits, references)
    if references.ndim == 2:
        # scikit-learn takes a single column for binary classes; a second one is ignored below.
        references, predictions = (
            np.pad(labels, ((0, 0), (0, 1))) for labels in (references, predictions)
        )
    return precision_recall_fscore_support(
        references,
        predictions,
        labels=np.arange(logits.shape[1]),
        average=None,
        zero_division=0.0,
    )


def confusion(
    logits: Float[np.ndarray, "n C"], references: Int[np.ndarray, " n"]
) -> Int[np.ndarray, "C C"]:
    """Number of examples of each class (row) that are predicted as each class (column)."""
    count = logits.shape[1]
    cells = references * count + predict_classes(logits, references)
    return np.bincount(cells, minlength=count**2).reshape(count, count)


def _occurring_classes(
    classes: Int[np.ndarray, " n"] | Bool[np.ndarray, "n C"], count: int
) -> Bool[np.ndarray, " C"]:
    return classes.any(axis=0) if classes.ndim == 2 else np.bincount(classes, minlength=count) > 0


def _mean_over_classes(measure: int) -> Callable[[Outputs, References], float]:
    """Mean of one of the measures of `per_class` over the classes that occur or are predicted."""

    def compute(logits: Outputs, references: References) -> float:
        values, count = per_class(logits, references)[measure], logits.shape[1]
        predictions = predict_classes(logits, references)
        present = _occurring_classes(predictions, count) | _occurring_classes(references, count)
        return float(values[present].mean()) if present.any() else 0.0

    return compute


def _balanced_accuracy(logits: Outputs, references: References) -> float:
    _, recall, _, support = per_class(logits, references)
    return float(recall[support > 0].mean()) if support.any() else 0.0


def _weighted_f1(logits: Outputs, references: References) -> float:
    _, _, f1, support = per_class(logits, references)
    return float(np.average(f1, weights=support)) if support.any() else 0.0


def _micro_f1(logits: Outputs, references: References) -> float:
    """F1 of all pairs of an example and a class; with one class per example it is the accuracy."""
    if references.ndim == 1:
        return _accuracy(logits, references)
    predictions = predict_classes(logits, references)
    both = predictions.sum() + references.sum()
    return float(2 * (predictions & references).sum() / both) if both else 0.0


def _accuracy(logits: Outputs, references: References) -> float:
    """Fraction of examples whose class, or all of whose labels, are right."""
    same = predict_classes(logits, references) == references
    return float(same.reshape(len(same), -1).all(axis=1).mean()) if len(same) else 0.0


def _f1(logits: Outputs, references: References) -> float:
    return classification.f1(predict_classes(logits, references), references)


def _matthews(logits: Outputs, references: References) -> float:
    return classification.matthews(predict_classes(logits, references), references)


def _ranking(name: str) -> Callable[[Outputs, References], float]:
    """Mean over the classes of a measure of scikit-learn of each class against all others."""

    def compute(logits: Outputs, references: References) -> float:
        from sklearn import metrics

        single, values = references.ndim == 1, []
        for c in range(logits.shape[1]):
            true = references == c if single else references[:, c]
            if true.any() and not true.all():
                scores = _log_odds(logits, c) if single else logits[:, c]
                values.append(getattr(metrics, name)(true, scores))
        return float(np.mean(values)) if values else 0.0

    return compute


def _log_odds(logits: Float[np.ndarray, "n C"], c: int) -> Float[np.ndarray, " n"]:
    """Log-odds of a class against all others, which differ where probabilities round to 1."""
    logits = logits.astype(np.float64)
    return logits[:, c] - logsumexp(np.delete(logits, c, axis=1), axis=1)


def _r2(scores: Outputs, references: References) -> float:
    """Coefficient of determination: 1 - the squared error over that of the mean."""
    total = np.square(references - references.mean()).sum()
    return float(1 - np.square(scores - references).sum() / total) if total else 0.0


def _mean_absolute_error(scores: Outputs, references: References) -> float:
    return float(np.abs(scores - references).mean())


def _root_mean_squared_error(scores: Outputs, references: References) -> float:
    return float(np.sqrt(np.square(scores - references).mean()))


_CLASSES = (SINGLE_LABEL, MULTI_LABEL)

METRICS = {
    "accuracy": Metric(_accuracy, _CLASSES),
    "balanced_accuracy": Metric(_balanced_accuracy, (SINGLE_LABEL,)),
    "macro_f1": Metric(_mean_over_classes(2), _CLASSES),
    "macro_precision": Metric(_mean_over_classes(0), _CLASSES),
    "macro_recall": Metric(_mean_over_classes(1), _CLASSES),
    "micro_f1": Metric(_micro_f1, _CLASSES),
    "weighted_f1": Metric(_weighted_f1, _CLASSES),
    "f1": Metric(_f1, (SINGLE_LABEL,), num_labels=2),
    "auc": Metric(_ranking("roc_auc_score"), _CLASSES),
    "average_precision": Metric(_ranking("average_precision_score"), _CLASSES),
    "matthews": Metric(_matthews, (SINGLE_LABEL,)),
    "pearson": Metric(classification.pearson, (REGRESSION,)),
    "spearman": Metric(classification.spearman, (REGRESSION,)),
    "r2": Metric(_r2, (REGRESSION,)),
    "mean_absolute_error": Metric(_mean_absolute_error, (REGRESSION,), is_error=True),
    "root_mean_squared_error": Metric(_root_mean_squared_error, (REGRESSION,), is_error=True),
}
"""All metrics by name; `f1` is that of the second of two classes."""

DEFAULTS = {
    SINGLE_LABEL: ("accuracy", "macro_f1"),
    MULTI_LABEL: ("micro_f1", "macro_f1", "accuracy"),
    REGRESSION: ("pearson", "spearman", "mean_absolute_error"),
}
"""The metrics of each problem type; the first chooses epochs and seeds."""
