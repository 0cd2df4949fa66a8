"""Search with FAISS: a flat index gives the rankings of exact search, and mistakes are one line."""

import re
import sys

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.huggingface.sentence_transformers import EmbeddingSettings
from bertjax.inference import dense_retrieval, faiss_index
from bertjax.inference.dense_retrieval import Collection

RANDOM = np.random.default_rng(5)
VECTORS = {f"d{number}": row for number, row in enumerate(RANDOM.normal(size=(40, 6)))}
VECTORS |= {"d7": VECTORS["d3"], "q": RANDOM.normal(size=6), "p": VECTORS["d3"]}
COLLECTION = Collection(
    {name: name for name in VECTORS if name[0] == "d"}, {"q": "q", "p": "p"}, {}, 0
)


class Embedder:
    """Embeds names as the unit vectors of VECTORS."""

    settings = EmbeddingSettings("mean", True, 0)

    def embed(self, texts, *, total, first=0, prompt):
        rows = np.array([VECTORS[text] for text in texts], np.float32)
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r"pip install 'bertjax\[faiss\]'"):
        faiss_index.search(Embedder(), COLLECTION, "Flat")


@pytest.mark.slow
def test_a_flat_index_is_exact_search():
    pytest.importorskip("faiss", reason="the extra `faiss`")
    for depth in (5, 100):
        found = faiss_index.search(Embedder(), COLLECTION, "Flat", depth)
        assert found == dense_retrieval.search(Embedder(), COLLECTION, depth)
    # Equal documents are ranked by descending id.
    assert found["p"][:2] == ["d7", "d3"]
    assert set(faiss_index.search(Embedder(), COLLECTION, "HNSW8", 3)["p"][:2]) == {"d3", "d7"}
    # With all of its clusters, an index of clusters is exact as well.
    clusters = faiss_index.search(Embedder(), COLLECTION, "IVF4,Flat nprobe=4", 100)
    assert clusters == dense_retrieval.search(Embedder(), COLLECTION, 100)


@pytest.mark.slow
def test_the_training_on_many_documents_is_announced(monkeypatch):
    pytest.importorskip("faiss", reason="the extra `faiss`")
    monkeypatch.setattr(faiss_index, "MANY_DOCUMENTS", 40)
    shown = []
    faiss_index.search(Embedder(), COLLECTION, "Flat", 5, lambda *update: shown.append(update))
    assert shown == [(None, "training the index Flat and adding 40 vectors")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("description", "printed"),
    [
        ("flat", "got 'flat' for vectors of 6, expected a description as for faiss"),
        ("Flat nprobe=2", "got 'Flat nprobe=2' for vectors of 6"),
        ("IVF4,Flat probes=2", "got 'IVF4,Flat probes=2' for vectors of 6"),
        ("IVF64,Flat", "got 'IVF64,Flat' and 40 documents: "),
    ],
)
def test_an_impossible_index_is_one_line(description, printed, capfd):
    pytest.importorskip("faiss", reason="the extra `faiss`")
    with pytest.raises(UserError, match=re.escape(printed)) as error:
        faiss_index.search(Embedder(), COLLECTION, description)
    assert "\n" not in str(error.value)
