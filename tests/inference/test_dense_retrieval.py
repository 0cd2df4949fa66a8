"""bertjax evaluate retrieval: folders in BEIR's layout, exact search, and rankings."""

import contextlib
import gzip
import io
import json
import pathlib

import numpy as np
import pytest

import bertjax
from bertjax import cli
from bertjax.errors import UserError
from bertjax.huggingface.sentence_transformers import EmbeddingSettings
from bertjax.inference import dense_retrieval, embeddings, retrieval_search
from bertjax.inference.dense_retrieval import Collection
from bertjax.metrics import retrieval as metrics

RUN = pathlib.Path(__file__).parent.parent / "data_fixtures" / "saved_runs" / "run"
DOCUMENTS = [
    {"_id": "d1", "title": "The cat", "text": "sat on the mat"},
    {"_id": "d2", "title": "", "text": "nine unbelievable elephants"},
    {"_id": 3, "title": None, "text": "dogs"},
    {"_id": "d4", "text": ""},
]
QUERIES = [{"_id": f"q{number}", "text": text} for number, text in enumerate(("a cat", "a", "dog"))]
JUDGEMENTS = [("q2", "3", 2), ("q0", "d1", 1), ("q0", "d2", 0)]


def write(folder: pathlib.Path, documents=DOCUMENTS, queries=QUERIES, judgements=JUDGEMENTS):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("\n".join([*map(json.dumps, documents), ""]))
    (folder / "queries.jsonl").write_text("\n".join([*map(json.dumps, queries), ""]))
    rows = ["\t".join(map(str, row)) for row in (("query-id", "corpus-id", "score"), *judgements)]
    (folder / "qrels" / "test.tsv").write_text("\n".join([*rows, ""]))
    return folder


class Fixed:
    """Embeds texts that are numbers: x as (cos x, sin x), in groups of three."""

    settings = EmbeddingSettings("mean", True, 0)

    def __init__(self):
        self.calls = []

    def embed(self, texts, *, total, first=0, prompt):
        texts = list(texts)
        self.calls.append((len(texts), total, first))
        angles = np.array(texts, np.float32)
        vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        yield from np.split(vectors, range(3, len(vectors), 3))


def test_documents_are_title_and_text(tmp_path):
    folder = write(tmp_path / "beir")
    read = dense_retrieval.read(str(folder))
    assert read.documents == {
        "d1": "The cat sat on the mat",
        "d2": "nine unbelievable elephants",
        "3": "dogs",
        "d4": "",
    }
    assert read.queries == {"q2": "dog", "q0": "a cat"}
    assert read.judgements == {"q2": {"3": 2}, "q0": {"d1": 1, "d2": 0}}
    numbers = {"queries": 2, "documents": 4, "empty_documents": 1, "judgements": 3, "unjudged": 1}
    assert read.counts() == numbers
    plain = folder / "corpus.jsonl"
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert dense_retrieval.read(str(folder)) == read


def test_the_nearest_documents_are_ranked_by_cosine_and_ties_by_descending_id():
    documents = {"b": "0.2", "a": "1", "c": "0.2", "e": "3", "d": "0.2", "f": "0.1", "g": "2"}
    queries = {"q": "0", "p": "2.1"}
    embedder = Fixed()
    found = dense_retrieval.search(embedder, Collection(documents, queries, {}, 0))
    assert found == {"q": list("fdcbage"), "p": list("geadcbf")}
    assert embedder.calls == [(2, 9, 0), (7, 9, 2)]


def test_as_many_documents_are_kept_as_the_metrics_need():
    random = np.random.default_rng(0)
    angles = random.permutation(np.linspace(0, 3, 250))
    documents = {f"d{number}": f"{angle}" for number, angle in enumerate(angles)}
    found = dense_retrieval.search(Fixed(), Collection(documents, {"q": "0"}, {}, 0))
    assert found["q"] == [f"d{number}" for number in np.argsort(angles)[: metrics.DEPTH]]


def run_cli(*words) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = cli.main([str(word) for word in words])
    return status, out.getvalue(), errors.getvalue()


def test_rankings_of_a_model(tmp_path):
    """Against cosines of `Model.embed`, with documents in several groups."""
    texts = ["the cat sat", "a dog", "on the mat", "nine elephants", "the", "one two three"]
    documents = [
        {"_id": f"d{n}", "title": "", "text": f"{texts[n % 6]} {texts[n // 6]}"} for n in range(20)
    ]
    judgements = [("q0", f"d{n}", n % 3) for n in range(9)] + [("q2", "d5", 1)]
    folder = write(tmp_path / "beir", documents, QUERIES, judgements)
    words = ("evaluate", "retrieval", "--model", RUN, "--data", folder, "--precision", "float32")
    words += ("--query_prompt", "the cat ", "--document_prompt", "elephants ")
    status, out, errors = run_cli(*words, "--batch_size", 1, "--json")
    assert (status, errors) == (0, "note: queries without judgements, left out: 1; judged: 2\n")
    found = json.loads(out)
    assert list(found.values())[3:] == [2, 20, 0, 10, 1, 0]

    bert = bertjax.load(RUN, precision="float32")
    vectors = bert.embed([document["text"] for document in documents], prompt="elephants ")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rankings = {}
    for query in QUERIES:
        order = np.argsort(-(vectors @ bert.embed(query["text"], prompt="the cat ")))
        rankings[query["_id"]] = [documents[number]["_id"] for number in order]
    gains = {"q0": {f"d{n}": n % 3 for n in range(9)}, "q2": {"d5": 1}}
    expected = metrics.score(rankings, gains)
    assert list(found)[:3] == list(expected) == ["ndcg@10", "mrr@10", "recall@100"]
    assert [found[name] for name in expected] == pytest.approx(list(expected.values()))
    assert 0 < found["ndcg@10"] < 1


def test_a_query_does_not_find_the_document_with_its_id():
    documents = {"q": "a cat", "d1": "the cat sat", "d2": "dogs", "d3": "nine elephants"}
    collection = Collection(documents, {"q": "a cat", "p": "a dog"}, {}, 0)
    options = {"index": "", "pooling": "", "dim": 0, "max_length": 0, "batch_size": 2}
    options |= {"precision": "float32", "progress": lambda share, text: None, "prompts": {}}
    plain, found = (
        retrieval_search.search(
            str(RUN), collection, depth, ignore_identical_ids=ignored, **options
        )[0]
        for depth, ignored in ((4, False), (2, True))
    )
    assert plain["q"][0] == "q"
    assert found == {"q": plain["q"][1:3], "p": plain["p"][:2]}


def test_an_interrupted_search_resumes(tmp_path, monkeypatch):
    """Stored vectors are not computed again, and the rankings are those without interruption."""
    monkeypatch.setattr(embeddings, "_BATCHES_PER_CHUNK", 2)
    words = ["the cat", "a dog " * 40, "mat", "nine elephants"]
    documents = [{"_id": f"d{n}", "text": f"{words[n % 4]} {words[n % 3]}"} for n in range(9)]
    folder = write(tmp_path / "beir", documents, QUERIES, [("q0", "d1", 1), ("q2", "d4", 1)])
    shares = []

    def search(output, stop=2.0, **options):
        def progress(share, text):
            shares.append(share)
            if share > stop:
                raise KeyboardInterrupt

        options = {"precision": "float32", "batch_size": 1, "progress": progress} | options
        return bertjax.evaluate("retrieval", str(RUN), str(folder), output=output, **options)

    outputs = [str(tmp_path / name) for name in ("whole.jsonl", "found.jsonl")]
    expected = search(outputs[0])
    assert expected["truncated"] > 0
    with pytest.raises(KeyboardInterrupt):
        search(outputs[1], stop=0.6)
    with pytest.raises(UserError, match="has finished parts with pooling='': got 'cls'; give"):
        search(outputs[1], pooling="cls")
    shares.clear()
    assert search(outputs[1]) == expected
    # Of 2 queries and 9 documents, 2 and 4 were stored.
    assert shares == pytest.approx([8 / 11, 10 / 11, 1])
    whole, found = (pathlib.Path(name).read_text() for name in outputs)
    assert found == whole
    rows = [json.loads(line) for line in found.splitlines()]
    assert [row["query"] for row in rows] == ["q0", "q2"]
    assert {frozenset(row["documents"]) for row in rows} == {frozenset(f"d{n}" for n in range(9))}
    assert {path.name for path in tmp_path.iterdir()} == {"beir", "whole.jsonl", "found.jsonl"}


def test_vectors_of_other_texts_are_refused(tmp_path):
    def stored(*texts, prompt=""):
        embedder = Fixed()
        embedder.num_truncated = 0
        store = embeddings.StoredEmbedder(embedder, tmp_path)
        return np.concatenate(list(store.embed(texts, total=9, prompt=prompt))), embedder.calls

    vectors, _ = stored("0.5", "1", "2", "3")
    again, calls = stored("0.5", "1", "2", "3", "0.1")
    np.testing.assert_array_equal(again[:4], vectors)
    assert calls == [(1, 9, 4)]
    with pytest.raises(UserError, match="--data: the first 5 texts differ from those whose"):
        stored("0.5", "1.5", "2", "3", "0.1")
    with pytest.raises(UserError, match=r"has vectors with {'prompt': ''}: got {'prompt': 'a'}"):
        stored("0.5", prompt="a")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bm25", "--batch_size", 3), "--batch_size has no effect: got 3 with --model='bm25'"),
        ((RUN, "--rerank_depth", 3), "--rerank_depth has no effect: got 3 with --reranker=''"),
        (("bm25", "--reranker", RUN, "--rerank_depth", 0), "--rerank_depth: got 0"),
        (("bm25", "--query_prompt", "q: "), "query_prompt: got q:  with model bm25"),
    ],
)
def test_options_without_effect_are_refused(tmp_path, words, message):
    folder = write(tmp_path / "beir")
    status, out, errors = run_cli("evaluate", "retrieval", "--data", folder, "--model", *words)
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert message in errors


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"judgements": [*JUDGEMENTS, JUDGEMENTS[1]]}, ":5: got a second judgement of .* 'd1'"),
        ({"judgements": [("q0", "d9", 1)]}, ":2: corpus-id: got 'd9', which is not in corpus"),
        ({"judgements": [("q9", "d1", 1)]}, ":2: query-id: got 'q9', which is not in queries"),
        ({"judgements": [("q0", "d1", "high")]}, ":2: score: got 'high', expected an integer"),
        ({"judgements": []}, "has no rows"),
        ({"documents": [*DOCUMENTS, DOCUMENTS[0]]}, ":5: _id: got 'd1' twice"),
        ({"queries": [*QUERIES, QUERIES[2]]}, ":4: _id: got 'q2' twice"),
        (
            {"queries": [{"_id": "q", "text": " "}]},
            r"queries\.jsonl:1: text: got ' ', expected one t",
        ),
        (
            {"queries": [{"id": "q0", "text": "a"}]},
            "has no column '_id': got id, text, expected _id",
        ),
        ({"queries": [{"_id": None, "text": "a"}]}, ":1: _id: got None, expected an id"),
        ({"documents": [{"_id": "d1", "body": "a"}]}, "has no column 'text': got _id, body"),
        ({"documents": [{"_id": "d1", "text": 1}]}, ":1: got .*1.*, expected strings for title"),
    ],
)
def test_malformed_collections(tmp_path, changed, message):
    with pytest.raises(UserError, match=message):
        dense_retrieval.read(str(write(tmp_path / "beir", **changed)))


def test_judgements_without_a_header_are_refused(tmp_path):
    folder = write(tmp_path / "beir")
    (folder / "qrels" / "test.tsv").write_text("q0\t0\td1\t1\n" * 2)
    expected = "got q0, 0, d1, 1, expected query-id, corpus-id, score in the first line"
    with pytest.raises(UserError, match=expected):
        dense_retrieval.read(str(folder))


def test_missing_files_are_named_with_those_present(tmp_path):
    folder = write(tmp_path / "beir")
    with pytest.raises(UserError, match=r"no dev\.tsv in .*qrels: got test\.tsv, expected corpus"):
        dense_retrieval.read(str(folder), "dev")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(UserError, match=r"no queries\.jsonl in .*: got corpus\.jsonl, qrels"):
        dense_retrieval.read(str(folder))
    with pytest.raises(UserError, match=r"no folder .*: --data expects one with corpus"):
        dense_retrieval.read(str(tmp_path / "absent"))
