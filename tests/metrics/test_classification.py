"""Metrics equal hand-computed values, scikit-learn, scipy and their definitions."""

import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from bertjax.metrics import classification


def test_accuracy_by_hand():
    assert classification.accuracy(np.array([0, 1, 2, 1]), np.array([0, 1, 1, 1])) == 0.75


def test_f1_by_hand():
    # 2 true positives, 1 false positive, 3 false negatives: 2*2 / (2*2 + 1 + 3) = 1/2
    predictions = np.array([1, 1, 1, 0, 0, 0, 0])
    references = np.array([1, 1, 0, 1, 1, 1, 0])
    assert classification.f1(predictions, references) == pytest.approx(0.5)


def test_f1_of_another_positive_class():
    predictions, references = np.array([0, 0, 1]), np.array([0, 1, 1])
    assert classification.f1(predictions, references, positive=0) == pytest.approx(2 / 3)


def test_matthews_by_hand():
    # tp 2, tn 1, fp 1, fn 1: (2*1 - 1*1) / sqrt(3 * 3 * 2 * 2) = 1/6
    predictions = np.array([1, 1, 1, 0, 0])
    references = np.array([1, 1, 0, 1, 0])
    assert classification.matthews(predictions, references) == pytest.approx(1 / 6)


def test_pearson_by_hand():
    # deviations (-1, 0, 1) and (-4/3, -1/3, 5/3): 3 / sqrt(2 * 42/9)
    value = classification.pearson(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]))
    assert value == pytest.approx(3 / np.sqrt(2 * 42 / 9))


def test_spearman_by_hand():
    # rank differences 1, 1, 0, 0: 1 - 6*2 / (4*15)
    value = classification.spearman(
        np.array([2.0, 1.0, 30.0, 400.0]), np.array([1.0, 2.0, 3.0, 4.0])
    )
    assert value == pytest.approx(0.8)


@pytest.mark.parametrize("seed", range(5))
def test_classes_agree_with_scikit_learn(seed):
    generator = np.random.default_rng(seed)
    references = generator.integers(0, 2, 211)
    predictions = np.where(generator.random(211) < 0.3, 1 - references, references)
    assert classification.accuracy(predictions, references) == pytest.approx(
        sklearn.metrics.accuracy_score(references, predictions)
    )
    assert classification.f1(predictions, references) == pytest.approx(
        sklearn.metrics.f1_score(references, predictions)
    )
    assert classification.matthews(predictions, references) == pytest.approx(
        sklearn.metrics.matthews_corrcoef(references, predictions)
    )


@pytest.mark.parametrize("seed", range(5))
def test_matthews_of_three_classes_agrees_with_scikit_learn(seed):
    generator = np.random.default_rng(seed)
    references, predictions = generator.integers(0, 3, (2, 97))
    assert classification.matthews(predictions, references) == pytest.approx(
        sklearn.metrics.matthews_corrcoef(references, predictions)
    )


@pytest.mark.parametrize("seed", range(5))
def test_correlations_agree_with_scipy_also_with_ties(seed):
    generator = np.random.default_rng(seed)
    references = np.round(generator.uniform(0, 5, 83) * 2) / 2
    predictions = np.round(references + generator.normal(0, 1, 83), 1)
    assert classification.pearson(predictions, references) == pytest.approx(
        scipy.stats.pearsonr(predictions, references).statistic
    )
    assert classification.spearman(predictions, references) == pytest.approx(
        scipy.stats.spearmanr(predictions, references).statistic
    )


@pytest.mark.parametrize(
    ("predictions", "references"),
    [
        ([1, 1, 1, 1], [1, 0, 1, 0]),
        ([0, 1, 0, 1], [1, 1, 1, 1]),
        ([1, 1, 1], [1, 1, 1]),
        ([0, 0, 0], [0, 0, 0]),
    ],
)
def test_one_class_is_scored_as_scikit_learn_scores_it(predictions, references):
    predictions, references = np.array(predictions), np.array(references)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected_f1 = sklearn.metrics.f1_score(references, predictions)
        expected_matthews = sklearn.metrics.matthews_corrcoef(references, predictions)
    assert classification.f1(predictions, references) == pytest.approx(expected_f1)
    assert classification.matthews(predictions, references) == expected_matthews == 0.0


@pytest.mark.parametrize("measure", [classification.pearson, classification.spearman])
@pytest.mark.parametrize(
    "predictions",
    [[2.5, 2.5, 2.5], [np.nan, 1.0, 2.0], [np.inf, 1.0, 2.0], [0.0, 0.0, 0.0]],
)
def test_undefined_correlations_are_zero(measure, predictions):
    assert measure(np.array(predictions), np.array([1.0, 2.0, 3.0])) == 0.0
    assert measure(np.array([1.0, 2.0, 3.0]), np.array(predictions)) == 0.0


@pytest.mark.parametrize("measure", [classification.pearson, classification.spearman])
def test_nearly_constant_predictions_give_a_finite_number(measure):
    predictions = np.array([2.5, 2.5, np.nextafter(2.5, 3.0)])
    value = measure(predictions, np.array([1.0, 2.0, 3.0]))
    assert -1.0 <= value <= 1.0


@pytest.mark.parametrize(
    "measure",
    [
        classification.accuracy,
        classification.f1,
        classification.matthews,
        classification.pearson,
        classification.spearman,
    ],
)
def test_no_examples_score_zero_and_lengths_must_agree(measure):
    assert measure(np.zeros(0), np.zeros(0)) == 0.0
    with pytest.raises(ValueError, match="equal length"):
        measure(np.zeros(3), np.zeros(4))


def test_float32_predictions_are_correlated_in_float64():
    references = np.arange(5, dtype=np.float32)
    predictions = (1e6 + references).astype(np.float32)
    assert classification.pearson(predictions, references) == pytest.approx(1.0, abs=1e-12)


def test_summarize_by_hand():
    # deviations from the mean 3: -2, -1, 0, 3; squares 4 + 1 + 0 + 9 = 14, over 3
    expected = {"median": 2.5, "mean": 3.0, "min": 1.0, "max": 6.0, "std": (14 / 3) ** 0.5}
    assert classification.summarize([6.0, 1.0, 3.0, 2.0]) == pytest.approx(expected)
    assert classification.summarize([0.5])["std"] == 0.0
