"""Metrics of ranked retrieval: nDCG, reciprocal rank and recall at a cutoff.

The conventions are those of trec_eval, and so of pytrec_eval and BEIR: a document without judgement
has the gain 0, negative judgements count as 0, a document is relevant if its gain is positive, and
a query without a relevant document has the value 0. Every metric is in [0, 1].
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Num

NDCG_CUTOFF, RECIPROCAL_RANK_CUTOFF, RECALL_CUTOFF = 10, 10, 100
DEPTH = max(NDCG_CUTOFF, RECIPROCAL_RANK_CUTOFF, RECALL_CUTOFF)
"""The length of a ranking from which `score` computes all metrics."""


def score(
    rankings: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
    """Computes the mean of each metric over all judged queries.

    Args:
      rankings: The retrieved documents of each query, best first, `DEPTH` of them or more; fewer
        if no others were found.
      judgements: The gains of the judged documents of each query.

    Returns:
      `ndcg@10`, `mrr@10` and `recall@100`.
    """
    values = []
    for query, gains in judgements.items():
        ranked = np.array([gains.get(document, 0) for document in rankings[query]])
        judged = np.array(list(gains.values()))
        values.append(
            (
                ndcg(ranked, judged, NDCG_CUTOFF),
                reciprocal_rank(ranked, RECIPROCAL_RANK_CUTOFF),
                recall(ranked, judged, RECALL_CUTOFF),
            )
        )
    names = (
        f"ndcg@{NDCG_CUTOFF}",
        f"mrr@{RECIPROCAL_RANK_CUTOFF}",
        f"recall@{RECALL_CUTOFF}",
    )
    return dict(zip(names, np.mean(values, axis=0).tolist(), strict=True))


def ndcg(ranked: Num[np.ndarray, " n"], judged: Num[np.ndarray, " m"], cutoff: int) -> float:
    """Normalized discounted cumulative gain (Jarvelin and Kekalainen 2002, section 2).

    The gain of the document at rank r, divided by log2(r + 1), is summed over the first `cutoff`
    ranks, and divided by the highest possible sum. The paper divides by log2(r), from rank 2 on.
    Gains are those of the judgements, not 2^gain - 1.

    Args:
      ranked: Gains of the retrieved documents, best first.
      judged: Gains of all judged documents, in any order.
      cutoff: Number of ranks.
    """
    best = _discounted_gain(np.sort(judged)[::-1], cutoff)
    return _discounted_gain(ranked, cutoff) / best if best else 0.0


def _discounted_gain(gains: Num[np.ndarray, " n"], cutoff: int) -> float:
    gains = np.maximum(gains[:cutoff], 0)
    return float((gains / np.log2(np.arange(len(gains)) + 2)).sum())


def reciprocal_rank(ranked: Num[np.ndarray, " n"], cutoff: int) -> float:
    """1 / rank of the first relevant document; 0 if it is not among the first `cutoff`."""
    found = np.flatnonzero(ranked[:cutoff] > 0)
    return 1 / (1 + int(found[0])) if found.size else 0.0


def recall(ranked: Num[np.ndarray, " n"], judged: Num[np.ndarray, " m"], cutoff: int) -> float:
    """Fraction of the relevant documents that are among the first `cutoff`."""
    relevant = int((judged > 0).sum())
    return int((ranked[:cutoff] > 0).sum()) / relevant if relevant else 0.0
