"""Classification and regression metrics: accuracy, F1, Matthews, Pearson, Spearman.

Every function takes predictions first and references second, one of each an example, and returns a
fraction (1 is perfect). Degenerate input, where a formula divides by zero, has the value 0: nothing
to score, no positive anywhere, a constant where a correlation is asked for. That is what the
official scorers print where they print a number at all.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Num, Shaped


def accuracy(predictions: Shaped[np.ndarray, " n"], references: Shaped[np.ndarray, " n"]) -> float:
    """The share of predictions that equal their reference."""
    _check_pairs(predictions, references)
    return float(np.mean(predictions == references)) if predictions.size else 0.0


def f1(
    predictions: Shaped[np.ndarray, " n"],
    references: Shaped[np.ndarray, " n"],
    positive: int = 1,
) -> float:
    """The harmonic mean of precision and recall of the class `positive`."""
    from sklearn.metrics import f1_score

    _check_pairs(predictions, references)
    if not predictions.size:
        return 0.0
    return float(f1_score(references == positive, predictions == positive, zero_division=0.0))


def matthews(predictions: Shaped[np.ndarray, " n"], references: Shaped[np.ndarray, " n"]) -> float:
    """The correlation of predicted and true classes (Matthews 1975), -1 to 1."""
    from sklearn.metrics import matthews_corrcoef

    _check_pairs(predictions, references)
    if _is_constant(predictions) or _is_constant(references):
        return 0.0
    return float(matthews_corrcoef(references, predictions))


def pearson(predictions: Num[np.ndarray, " n"], references: Num[np.ndarray, " n"]) -> float:
    """The linear correlation, -1 to 1."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, references)


def spearman(predictions: Num[np.ndarray, " n"], references: Num[np.ndarray, " n"]) -> float:
    """The correlation of ranks, -1 to 1; ties share their mean rank."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, references)


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Median, mean, extremes and standard deviation (of a sample: n - 1) of several runs' scores.

    The deviation of a single run is 0.
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
    """Applies a scipy statistic where it is defined: finite values that are not constant."""
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
            f"predictions {predictions.shape} and references {references.shape} must be two "
            "vectors of one length"
        )


def _is_constant(values: np.ndarray) -> bool:
    """Whether there are not two different values."""
    return values.size == 0 or bool((values == values[0]).all())
