"""Fine-tuning of a cross-encoder, reranking with its run, its losses, and parity of an export."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax

import bertjax
from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import exporting, run_cache
from bertjax.inference import dense_retrieval, evaluation, reranking
from bertjax.runs import finetune, finetune_job
from bertjax.tasks.cross_encoder.head import Task
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train import sharding
from bertjax.train.accumulation import split_microbatches

WORDS = ["mill", "river", "north", "old", "stone", "oak", "rain", "ship"]
LISTS = [
    {"query": a, "passage": f"{b} oak", "negative_1": f"{b} {c}", "negative_2": c}
    for a, b, c in itertools.permutations(WORDS[:5], 3)
]


@pytest.fixture(scope="module")
def run(random_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cross_encoder")
    tokenizer = tokenizers.train([" ".join(WORDS)] * 4, kind="wordpiece", vocab_size=60)
    (folder / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LISTS))
    changes = {
        "data.max_seq_length": "12",
        "data.padded_lengths": "()",
        "data.eval_batch_size": "8",
        "log_every": "1",
        "num_train_epochs": "4",
        "optimizer.learning_rate": "0.01",
        "task.loss_type": "softmax",
        "model.precision": "float32",
    }
    finetune.finetune(
        configs.load_config("cross_encoder:tiny", changes),
        init=f"random:{random_run(tokenizer)}",
        data=str(folder / "lists.jsonl"),
        workdir=str(folder / "run"),
    )
    return folder / "run"


@pytest.fixture
def embedder(random_run):
    """A model with random weights."""
    return str(random_run(tokenizers.train([" ".join(WORDS)] * 4, kind="wordpiece", vocab_size=60)))


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """Five documents and two judged queries."""
    folder = tmp_path_factory.mktemp("beir")
    documents = ["mill river", "old", "rain mill", "stone oak " * 5, "oak"]
    rows = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(documents)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(["mill", "stone"])]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels").mkdir()
    qrels = "query-id\tcorpus-id\tscore\nq0\td0\t1\nq0\td2\t2\nq1\td3\t1\n"
    (folder / "qrels" / "test.tsv").write_text(qrels)
    return folder


def test_the_first_documents_are_sorted_by_the_scores_of_the_run(run, beir):
    lines = (run / "seed_0" / "metrics.jsonl").read_text().splitlines()
    losses = [row["cross_encoder/loss"] for row in map(json.loads, lines) if "loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    collection = dense_retrieval.read(str(beir))
    reranker = reranking.load(run_cache.find_run(run), batch_size=3, precision="float32")
    before = {"q0": ["d4", "d3", "d2", "d1", "d0"], "q1": ["d0", "d1", "d2", "d3", "d4"]}
    found, truncated = reranking.rerank(reranker, before, collection, 4, lambda *_: None)
    assert truncated == 2  # d3 with either query
    for query, ranked in before.items():
        # One pair at a time, without padding (invariant 7).
        alone = {
            key: reranker.score([collection.queries[query]], [collection.documents[key]])[0][0]
            for key in ranked[:4]
        }
        assert found[query] == [*sorted(alone, key=alone.get, reverse=True), ranked[4]]


def test_reranking_resumes(run, embedder, beir, tmp_path, monkeypatch):
    options = {"precision": "float32", "batch_size": 8, "reranker": str(run)}
    expected = evaluation.retrieval(embedder, str(beir), output=str(tmp_path / "whole"), **options)
    shares = []

    def interrupt(share, text):
        if text.endswith("pairs"):
            shares.append(share)
            if len(shares) == 1:
                raise KeyboardInterrupt

    def evaluate(**changes):
        output = str(tmp_path / "found")
        return evaluation.retrieval(
            embedder, str(beir), output=output, progress=interrupt, **options | changes
        )

    monkeypatch.setattr(reranking, "_PAIRS_PER_CHUNK", 6)
    with pytest.raises(KeyboardInterrupt):
        evaluate()
    with pytest.raises(UserError, match="has finished parts with rerank_depth=100: got 50; give"):
        evaluate(rerank_depth=50)
    assert evaluate() == expected
    assert shares == [0.6, 1.0]  # each of two queries with five documents
    assert (tmp_path / "found").read_text() == (tmp_path / "whole").read_text()


def test_a_reranker_changes_the_ranking_and_not_the_documents(run, embedder, beir):
    options = {"precision": "float32", "batch_size": 8}
    plain = evaluation.retrieval(embedder, str(beir), **options)
    found = evaluation.retrieval(
        embedder, str(beir), reranker=str(run), rerank_depth=120, **options
    )
    assert found["recall@100"] == plain["recall@100"] == 1.0
    assert found["truncated_pairs"] == 2
    assert found["ndcg@10"] != plain["ndcg@10"]


def test_a_cross_encoder_is_refused_where_texts_are_embedded(run, beir):
    with pytest.raises(UserError, match=r"a cross-encoder, .*--model bm25 --reranker RUN"):
        evaluation.retrieval(str(run), str(beir))


def test_models_that_do_not_score_pairs_are_refused(run, embedder, beir):
    options = [
        ({"reranker": embedder}, "expected a model with one score for two texts"),
        ({"rerank_depth": 0}, "rerank_depth: got 0, expected an integer >= 1"),
    ]
    for changes, printed in options:
        with pytest.raises(UserError, match=printed):
            evaluation.retrieval(embedder, str(beir), **changes)
    for changes in ({"pooling": "cls"}, {"max_length": 8}, {"index": "Flat"}):
        (name,) = changes
        with pytest.raises(UserError, match=f"{name}: got .* with model bm25, as it reads"):
            evaluation.retrieval("bm25", str(beir), **changes)


@pytest.mark.parametrize("loss_type", ["bce", "softmax"])
def test_losses_by_hand(lookup, token_batch, loss_type):
    labels = np.array([1, 0, 0, 0.25, 0, 0], np.float32)
    if loss_type == "softmax":
        labels[3] = 1
    weights = np.array([1, 1, 1, 0, 0, 0], np.float32)
    batch = token_batch(6, labels=labels)
    encoder, head = lookup(), Task(loss_type=loss_type, candidates_per_example=3)
    key = jax.random.key(0)
    variables = encoder.init(key, batch, train=False)

    def run(batch):
        encoded = encoder.apply(variables, batch, train=False)
        params = head.init(key, encoder, encoded, batch, train=False, method="loss")
        logits = head.apply(params, encoder, encoded, batch, method="predict")
        return np.asarray(logits), head.apply(
            params, encoder, encoded, batch, train=False, method="loss"
        )

    logits, (loss, weight, metrics) = run(batch)
    if loss_type == "bce":
        p = expit(logits)
        expected = -(labels * np.log(p) + (1 - labels) * np.log(1 - p))
        hits = ((logits > 0) == (labels > 0.5)).sum()
    else:
        expected = -log_softmax(logits.reshape(2, 3), axis=1)[:, 0]
        hits = (logits.reshape(2, 3).argmax(axis=1) == 0).sum()
    assert (float(loss), float(weight)) == (pytest.approx(expected.sum(), rel=1e-5), len(expected))
    assert float(metrics["accuracy"][0]) == hits
    # A list is in one microbatch.
    parts = split_microbatches(batch, 2, 1, head.rows_per_example())
    sums = [run({key: rows[part, 0] for key, rows in parts.items()})[1][0] for part in (0, 1)]
    assert float(sum(sums)) == pytest.approx(float(loss), rel=1e-5)
    # Padding examples add nothing.
    _, (loss, weight, _) = run(batch | {"example_weight": jnp.asarray(weights)})
    half = len(expected) // 2
    assert (float(loss), float(weight)) == (pytest.approx(expected[:half].sum(), rel=1e-5), half)


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["bce", "softmax"])
def test_microbatches_limit_memory_and_change_no_gradient(run, loss_type):
    """Invariant 4, down to one list. Adam almost without normalisation, and no warmup."""
    changes = {
        "task.loss_type": loss_type,
        "data.max_seq_length": "12",
        "data.padded_lengths": "()",
        "model.precision": "float32",
        "model.hidden_dropout_prob": "0.1",
        "optimizer.adam_eps": "0.9",
        "optimizer.learning_rate": "0.9",
        "optimizer.warmup_share": "0",
        "optimizer.max_grad_norm": "0",
    }
    found = []
    for count in ("1", "8"):
        recipe = configs.load_config(
            "cross_encoder:tiny", changes | {"data.microbatches": count, "data.batch_size": "8"}
        )
        data = str(run.parent / "lists.jsonl")
        job = finetune_job.prepare(recipe, init=str(run / "seed_0"), data=data, workdir="unused")
        state = finetune_job.init_state(job, job.trainer(0))
        batch = sharding.to_global(job.example_batch, job.mesh)
        assert batch["input_ids"].shape == (24, 12)
        step = job.trainer(0).train_step.compile(state, batch)
        memory = step.function.memory_analysis().temp_size_in_bytes
        state, metrics = step(state, batch)
        values = [float(metrics[name]) for name in ("loss", "gradient_norm")]
        found.append((memory, values, jax.device_get(state.params)))
    (memory, values, params), (less, found_values, found_params) = found
    assert less < memory / 2
    np.testing.assert_allclose(found_values, values, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), params, found_params)


@pytest.mark.slow
def test_an_export_scores_as_the_run(run, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    exporting.write(exporting.find(run_cache.find_run(run)), tmp_path / "hf")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    assert model.config.num_labels == 1
    reranker = reranking.load(run_cache.find_run(run), batch_size=8, precision="float32")
    queries, passages = ["mill", "old north"], ["river mill rain", "ship"]
    found, _ = reranker.score(queries, passages)
    batch = bertjax.load(run).tokenizer(list(zip(queries, passages, strict=True)))
    inputs = {"input_ids": "input_ids", "token_type_ids": "segment_ids"}
    inputs = {name: torch.tensor(batch[own].astype(np.int64)) for name, own in inputs.items()}
    inputs["attention_mask"] = torch.tensor(batch["attention_mask"].astype(np.int64))
    with torch.no_grad():
        logits = model.eval()(**inputs).logits[:, 0].numpy()
    np.testing.assert_allclose(found, logits, atol=1e-5)
    again = reranking.load(run_cache.find_run(tmp_path / "hf"), batch_size=8, precision="float32")
    np.testing.assert_allclose(again.score(queries, passages)[0], found, atol=1e-5)
