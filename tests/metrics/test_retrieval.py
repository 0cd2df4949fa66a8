"""Metrics of ranked retrieval, against values computed by hand."""

import math

import numpy as np
import pytest

from bertjax.metrics import retrieval


def test_gains_are_linear_and_discounted_by_rank():
    """Rank 1, 2, 3 and 4 are divided by 1, log2(3), 2 and log2(5)."""
    ranked = np.array([1, 0, 3, 2])
    judged = np.array([2, 1, 3, 0, 4])
    found = 1 + 3 / 2 + 2 / math.log2(5)
    best = 4 + 3 / math.log2(3) + 2 / 2 + 1 / math.log2(5)
    assert retrieval.ndcg(ranked, judged, 10) == pytest.approx(found / best)
    # The best ranking is cut as well: two documents with the gains 4 and 3.
    assert retrieval.ndcg(ranked, judged, 2) == pytest.approx(1 / (4 + 3 / math.log2(3)))
    assert retrieval.ndcg(np.array([4, 3, 2, 1]), judged, 10) == 1.0
    # Fewer results than the cutoff are not a better ranking.
    assert retrieval.ndcg(np.array([4]), judged, 3) == pytest.approx(
        4 / (4 + 3 / math.log2(3) + 2 / 2)
    )


def test_negative_judgements_have_no_gain():
    ranked, judged = np.array([-1, 2]), np.array([-1, 2, -2])
    assert retrieval.ndcg(ranked, judged, 10) == pytest.approx(1 / math.log2(3))
    assert retrieval.recall(ranked, judged, 1) == 0.0
    assert retrieval.reciprocal_rank(ranked, 10) == 0.5


def test_the_reciprocal_rank_is_that_of_the_first_relevant_document():
    assert retrieval.reciprocal_rank(np.array([0, 0, 1, 4]), 10) == pytest.approx(1 / 3)
    assert retrieval.reciprocal_rank(np.array([0, 0, 1, 4]), 3) == pytest.approx(1 / 3)
    assert retrieval.reciprocal_rank(np.array([0, 0, 1, 4]), 2) == 0.0


def test_recall_counts_relevant_documents_that_were_not_retrieved():
    ranked, judged = np.array([1, 0, 2]), np.array([0, 1, 2, 3, 1, 0])
    assert retrieval.recall(ranked, judged, 100) == 0.5
    assert retrieval.recall(ranked, judged, 2) == 0.25


def test_a_query_without_relevant_documents_counts_as_zero():
    ranked, judged = np.array([0, 0]), np.array([0, -1])
    assert retrieval.ndcg(ranked, judged, 10) == 0.0
    assert retrieval.reciprocal_rank(ranked, 10) == 0.0
    assert retrieval.recall(ranked, judged, 10) == 0.0


def test_means_are_over_the_judged_queries():
    """A document without judgement has no gain, and a query without judgements is left out."""
    rankings = {"p": ["x", "a"], "q": ["b", "x"], "r": ["a"], "unjudged": ["a"]}
    judgements = {"p": {"a": 2, "b": 1}, "q": {"b": 1, "c": 0}, "r": {"a": 0}}
    found = retrieval.score(rankings, judgements)
    first = (2 / math.log2(3)) / (2 + 1 / math.log2(3))
    assert found == {
        "ndcg@10": pytest.approx((first + 1 + 0) / 3),
        "mrr@10": pytest.approx((0.5 + 1 + 0) / 3),
        "recall@100": pytest.approx((0.5 + 1 + 0) / 3),
    }


def test_only_the_first_results_count():
    """Rank 11 is after the cutoff of nDCG and MRR, rank 101 after that of recall."""
    others = [f"x{number}" for number in range(200)]
    at_11 = {"q": [*others[:10], "a", *others[10:]]}
    at_101 = {"q": [*others[:100], "a"]}
    judgements = {"q": {"a": 1}}
    assert list(retrieval.score(at_11, judgements).values()) == [0, 0, 1]
    assert list(retrieval.score(at_101, judgements).values()) == [0, 0, 0]
