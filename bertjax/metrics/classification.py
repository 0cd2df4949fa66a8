"""Classification and regression metrics: accuracy, F1, Matthews, Pearson, Spearman.

Every function takes predictions first and references second, one of each per example, and returns
a fraction (1 is perfect). Where a formula divides by zero the result is 0: no examples, no positive
example or prediction, a correlation with a constant. The official scorers print the same, where
they print a number at all.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Num, Shaped


def accuracy(predictions: Shaped[np.ndarray, " n"], references: Shaped[np.ndarray, " n"]) -> float:
    """Fraction of predictions that equal their reference."""
    _check_pairs(predictions, references)
    return float(np.mean(predictions == references)) if predictions.size else 0.0


def f1(
    predictions: Shaped[np.ndarray, " n"],
    references: Shaped[np.ndarray, " n"],
    positive: int = 1,
) -> float:
    """Harmonic mean of precision and recall of the class `positive`."""
    from sklearn.metrics import f1_score

    _check_pairs(predictions, references)
    if not predictions.size:
        return 0.0
    return float(f1_score(references == positive, predictions == positive, zero_division=0.0))


def matthews(predictions: Shaped[np.ndarray, " n"], references: Shaped[np.ndarray, " n"]) -> float:
    """Matthews correlation of predicted and true classes (Matthews 1975), -1 to 1."""
    from sklearn.metrics import matthews_corrcoef

    _check_pairs(predictions, references)
    if _is_constant(predictions) or _is_constant(references):
        return 0.0
    return float(matthews_corrcoef(references, predictions))


def pearson(predictions: Num[np.ndarray, " n"], references: Num[np.ndarray, " n"]) -> float:
    """Pearson (linear) correlation, -1 to 1."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, references)


def spearman(predictions: Num[np.ndarray, " n"], references: Num[np.ndarray, " n"]) -> float:
    """Spearman (rank) correlation, -1 to 1; ties share their mean rank."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, references)


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Compute median, mean, extremes and sample standard deviation of the scores of several runs.

    The standard deviation divides by n - 1; that of a single run is 0.
    """
    array = np.array(values, np.float64)
    return {
        "median": float(np.median(array)),
        "mean": float(array.mean()),
        "min": float(array.min()),
        "max": float(array.max()),
        "std": float(array.std(ddof=1)) if len(array) > 1 else 0.0,
    }


def _correlation(statistic, predictions: np.ndarray, references: np.ndarray) -> float:
    """Apply a scipy statistic where it is defined: finite values that are not constant."""
    _check_pairs(predictions, references)
    predictions, references = predictions.astype(np.float64), references.astype(np.float64)
    if _is_constant(predictions) or _is_constant(references):
        return 0.0
    if not (np.isfinite(predictions).all() and np.isfinite(references).all()):
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where rounding makes values nearly constant
        value = float(statistic(predictions, references).statistic)
    return value if np.isfinite(value) else 0.0


def _check_pairs(predictions: np.ndarray, references: np.ndarray) -> None:
    if predictions.ndim != 1 or predictions.shape != references.shape:
        raise ValueError(
            f"got predictions of shape {predictions.shape} and references of shape "
            f"{references.shape}, expected two vectors of equal length"
        )


def _is_constant(values: np.ndarray) -> bool:
    """Whether all values are equal, or there are none."""
    return values.size == 0 or bool((values == values[0]).all())
