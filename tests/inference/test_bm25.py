"""BM25: scores by the formula, ranks of equal scores, and queries with unknown words."""

import math
import sys

import pytest

from bertjax.errors import UserError
from bertjax.inference import bm25
from bertjax.inference.dense_retrieval import Collection

DOCUMENTS = {"a": "red fox", "b": "Red red hen", "c": "a cow x", "d": "pig", "e": "fox, hen, fox."}


def by_hand(query: str) -> dict[str, float]:
    """Scores of the documents, as in the docstring of `inference/bm25.py`."""
    words = {
        "a": ["red", "fox"],
        "b": ["red", "red", "hen"],
        "c": ["cow"],
        "d": ["pig"],
        "e": ["fox", "hen", "fox"],
    }
    mean = sum(map(len, words.values())) / len(words)
    scores = dict.fromkeys(words, 0.0)
    for term in query.split():
        count = sum(term in own for own in words.values())
        idf = math.log(1 + (len(words) - count + 0.5) / (count + 0.5))
        for key, own in words.items():
            frequency = own.count(term)
            length = 1.2 * (1 - 0.75 + 0.75 * len(own) / mean)
            scores[key] += idf * frequency / (frequency + length)
    return scores


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UserError, match=r"pip install 'bertjax\[bm25\]'"):
        bm25.search(Collection(DOCUMENTS, {"q": "fox"}, {}, 0))


@pytest.mark.slow
def test_the_indexing_of_many_documents_is_announced(monkeypatch):
    pytest.importorskip("bm25s", reason="the extra `bm25`")
    shown = []
    for limit in (6, 5):
        monkeypatch.setattr(bm25, "MANY_DOCUMENTS", limit)
        collection = Collection(DOCUMENTS, {"q": "fox"}, {}, 0)
        bm25.search(collection, progress=lambda *update: shown.append(update))
    steps = [(0.0, "0 of 1 queries"), (None, "indexing 5 documents by their words")]
    assert shown == [(1.0, "1 of 1 queries"), *steps, (1.0, "1 of 1 queries")]


@pytest.mark.slow
def test_documents_with_a_word_are_ranked_by_the_formula_and_ties_by_descending_id():
    pytest.importorskip("bm25s", reason="the extra `bm25`")
    queries = {"q": "red fox", "p": "hen fox fox", "t": "cow pig", "u": "dog", "x": "a !"}
    found = bm25.search(Collection(DOCUMENTS, queries, {}, 0))
    for key in ("q", "p", "t"):
        scores = by_hand(queries[key])
        expected = sorted(sorted(scores, reverse=True), key=lambda each: -scores[each])
        assert found[key] == [each for each in expected if scores[each]], key
    assert found["t"] == ["d", "c"]
    assert found["u"] == found["x"] == []
    first = bm25.search(Collection(DOCUMENTS, queries, {}, 0), 1)
    assert first == {key: ranked[:1] for key, ranked in found.items()}
    with pytest.raises(UserError, match="got no document with a word"):
        bm25.search(Collection({"a": "?", "b": ""}, queries, {}, 0))
