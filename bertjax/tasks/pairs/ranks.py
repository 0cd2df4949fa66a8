"""Rank of the positive of every pair among all texts of a split, by cosine or another score."""

import collections
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from bertjax.errors import UserError

_ROWS = 512
"""Number of anchors that are compared with all candidates at a time."""

Score = Callable[[Int[np.ndarray, " r"], Int[np.ndarray, " c"]], Float[np.ndarray, "r c"]]


def positive_ranks(
    vectors: Float[np.ndarray, "n G D"], text_ids: Int[np.ndarray, "n G"], *, normalize: bool = True
) -> Int[np.ndarray, " n"]:
    """Ranks, from 1, the positive of each row among the distinct positives and negatives of all.

    Other positives of the same anchor text, and the anchor's own text, are left out. A candidate
    with the same score as the positive precedes it, so that equal vectors do not rank first.

    Args:
      vectors: The anchor of each row, its positive, and any number of negatives.
      text_ids: Equal for equal texts.
      normalize: Whether the scores are cosines, instead of dot products.

    Raises:
      UserError: a score is infinite or NaN.
    """
    vectors = vectors.astype(np.float32)
    if normalize:
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    others = vectors[:, 1:].reshape(-1, vectors.shape[-1])
    return rank_positives(text_ids, lambda rows, chosen: vectors[rows, 0] @ others[chosen].T)


def rank_positives(text_ids: Int[np.ndarray, "n G"], score: Score) -> Int[np.ndarray, " n"]:
    """Ranks the positives as `positive_ranks` does, by any score.

    Args:
      text_ids: Equal for equal texts.
      score: From row numbers, and numbers among the texts of all rows but the anchors, to the score
        of each of these anchors with each of these texts.

    Raises:
      UserError: a score is infinite or NaN.
    """
    ids, first = np.unique(text_ids[:, 1:], return_index=True)
    own, relevant = np.searchsorted(ids, text_ids[:, 1]), _left_out(ids, text_ids)
    ranks = np.empty(len(text_ids), np.int64)
    for start in range(0, len(text_ids), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(text_ids)))
        scores = score(rows, first)
        check_scores(scores)
        threshold = scores[np.arange(len(rows)), own[rows]]
        for place, anchor in enumerate(text_ids[rows, 0].tolist()):
            scores[place, list(relevant[anchor])] = -np.inf
        ranks[rows] = 1 + (scores >= threshold[:, None]).sum(axis=1)
    return ranks


def _left_out(ids: Int[np.ndarray, " c"], text_ids: Int[np.ndarray, "n G"]) -> dict[int, set[int]]:
    """For each anchor text, the places in `ids` of its positives and of the text itself."""
    found = collections.defaultdict(set)
    for column in (text_ids[:, 1], text_ids[:, 0]):
        places = np.searchsorted(ids, column).clip(max=len(ids) - 1)
        for anchor, text, place in zip(
            text_ids[:, 0].tolist(), column.tolist(), places.tolist(), strict=True
        ):
            if ids[place] == text:
                found[anchor].add(place)
    return found


def check_candidates(where: str, text_ids: Int[np.ndarray, "n G"], remedy: str) -> None:
    """Raises `UserError` if no positive has a candidate that may precede it: all ranks are 1.

    Args:
      where: The split, for the message.
      text_ids: As of `rank_positives`.
      remedy: Further advice in the message.
    """
    ids = np.unique(text_ids[:, 1:])
    if all(len(own) == len(ids) for own in _left_out(ids, text_ids).values()):
        raise UserError(
            f"{where}: got {len(text_ids)} pair(s) without candidates other than positives of the "
            "query, expected some, as mrr is 1 for every model without; add pairs of other "
            f"queries or a column negative{remedy}"
        )


def check_scores(scores: Float[np.ndarray, "*shape"]) -> None:
    """Raises `UserError` if a score is infinite or NaN, which has no rank."""
    if not np.isfinite(scores).all():
        raise UserError(
            "got scores that are NaN or infinite: training has diverged; train again with a lower "
            "learning rate"
        )
