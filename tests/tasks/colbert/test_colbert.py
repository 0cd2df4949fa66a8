"""ColBERT: sequences, a run, its search against a loop, and user errors in one line."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.inference import dense_retrieval, evaluation, late_interaction, predict
from bertjax.runs import finetune, finetune_job
from bertjax.tasks.colbert.dataset import Dataset
from bertjax.tasks.colbert.encoding import SequenceEncoder, make_encoder
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train import sharding

WORDS = ["mill", "river", "north", "old", "stone", "oak", "rain", "ship"]
ROWS = [
    {"query": f"{a} {b}", "passage": f"{b}, {a}!", "negative_1": c, "negative_2": f"{c} {a}"}
    for a, b, c in itertools.permutations(WORDS[:4], 3)
]
OVERRIDES = {
    "data.max_seq_length": "12",
    "data.padded_lengths": "(8,)",
    "data.eval_batch_size": "8",
    "task.query_length": "6",
    "task.embedding_dim": "5",
    "model.precision": "float32",
}


@pytest.fixture(scope="module")
def tokenizer():
    texts = [", ".join([*WORDS, "a ! b ."])] * 4
    return tokenizers.train(texts, kind="wordpiece", vocab_size=80)


@pytest.fixture(scope="module")
def init(random_run, tokenizer):
    return f"random:{random_run(tokenizer)}"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("colbert") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="module")
def run(init, table):
    changes = {"num_train_epochs": "4", "log_every": "1", "optimizer.learning_rate": "0.003"}
    recipe = configs.load_config("colbert:tiny", OVERRIDES | changes)
    workdir = table.parent / "run"
    finetune.finetune(recipe, init=init, data=str(table), workdir=str(workdir))
    return workdir


def test_queries_have_masks_and_documents_are_compared_without_punctuation(tokenizer):
    encoder = make_encoder_of(tokenizer)
    marked = dataclasses.replace(encoder, markers=(1, 2))
    encoded = marked.encode(["mill", "river, mill !"], [True, False])
    assert encoded.lengths.tolist() == [6, 7]
    first, second = encoded.rows(np.arange(2), 8)["input_ids"].tolist()
    mill, river = (tokenizer.encode_batch([word])[0][0] for word in ("mill", "river"))
    specials = [tokenizer.cls_id, 1, mill, tokenizer.sep_id, tokenizer.mask_id, tokenizer.mask_id]
    assert first[:6] == specials
    assert second[:4] == [tokenizer.cls_id, 2, river, tokenizer.encode_batch([","])[0][0]]
    kinds = encoded.rows(np.arange(2), 8)["token_kinds"].tolist()
    assert kinds == [[1] * 6 + [0, 0], [2, 2, 2, 0, 2, 0, 2, 0]]
    assert encoder.markers == ()
    cut = encoder.encode(["mill mill mill mill mill"], [True])
    assert (cut.lengths.tolist(), cut.truncated.tolist()) == ([6], [True])


def make_encoder_of(trained) -> SequenceEncoder:
    class Spec:
        tokenizer, max_seq_length, cls_last, max_chars_per_word = trained, 12, False, 0

    return make_encoder(Spec, 6)


@pytest.mark.slow
def test_documents_are_ranked_by_maxsim(run, tmp_path, monkeypatch):
    lines = (run / "seed_0" / "metrics.jsonl").read_text().splitlines()
    losses = [row["colbert/loss"] for row in map(json.loads, lines) if "colbert/loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    texts = ["mill, river", "old", "north mill " * 4, "river old", "rain !"]
    documents = {f"d{number}": text for number, text in enumerate(texts)}
    collection = dense_retrieval.Collection(documents, {"q": "mill north", "p": "old"}, {}, 0)
    found_run = run_cache.find_run(run)
    assert late_interaction.is_trained_for(found_run)
    model = late_interaction.load(found_run, max_length=0, batch_size=2, precision="float32")
    found, truncated = late_interaction.search(model, collection, 4, lambda *_: None)
    assert truncated == 0

    def interrupt(share, _):
        shares.append(share)
        if share == 0.4:
            raise KeyboardInterrupt

    monkeypatch.setattr(late_interaction, "_DOCUMENTS", 2)
    shares = []
    with pytest.raises(KeyboardInterrupt):
        late_interaction.search(model, collection, 4, interrupt, tmp_path)
    again = late_interaction.search(model, collection, 4, interrupt, tmp_path)
    assert (again, shares) == ((found, 0), [0.4, 0.8, 1.0])
    changed = dataclasses.replace(collection, queries={"q": "mill", "p": "old"})
    with pytest.raises(UserError, match="--data: the first 7 texts differ"):
        late_interaction.search(model, changed, 4, interrupt, tmp_path)
    for key, query in collection.queries.items():
        # One text at a time, without padding (invariant 7), and token by token.
        scores = {}
        vectors, mask = (x[0] for x in model.encode([query], is_query=True)[0].queries([0]))
        for name, text in documents.items():
            own, kept = (x[0] for x in model.encode([text], is_query=False)[0].documents([0]))
            scores[name] = sum(max(float(v @ d) for d in own[kept]) for v in vectors[mask])
        assert found[key] == sorted(scores, key=scores.get, reverse=True)[:4]
        (answer,) = predict.load(found_run, precision="float32").predict(
            [("x:1", f"{query}\t{texts[2]}")], 8
        )
        assert answer["score"] == pytest.approx(scores["d2"], rel=1e-5)
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", documents), ("queries", collection.queries)):
        content = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in rows.items()]
        (beir / f"{name}.jsonl").write_text("".join(content))
    judged = [("query-id", "corpus-id", "score"), ("q", found["q"][2], "1")]
    judged.append(("p", found["p"][1], "1"))
    lines = ["\t".join(row) + "\n" for row in judged]
    (beir / "qrels" / "test.tsv").write_text("".join(lines))
    scored = evaluation.retrieval(str(run), str(beir), precision="float32", batch_size=2)
    assert scored["mrr@10"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    for changes, printed in (
        ({"pooling": "cls"}, "pooling: got cls with a colbert run"),
        ({"max_length": 64}, "max_length: got 64, expected at most 12"),
    ):
        with pytest.raises(UserError, match=printed):
            evaluation.retrieval(str(run), str(beir), **changes)


def test_positives_are_ranked_among_all_documents(encoding_spec, tokenizer, tmp_path):
    rows = [("mill", "river"), ("old", "north")]
    for name in ("train", "dev"):
        lines = ["query,passage", *(",".join(row) for row in rows), ""]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    config = configs.load_config("colbert:tiny", {"task.query_length": "6"})
    made = Dataset(str(tmp_path), dict(config.task), config.data, encoding_spec(tokenizer))
    vectors = np.zeros((4, 6, 2), np.float32)
    vectors[0], vectors[2] = (1, 0), (0, 1)
    vectors[1], vectors[3] = (0.5, 0.9), (0.6, 0.8)
    # The first query prefers the second document, the second query too: it has less of the first.
    assert made.score("dev", vectors) == {"mrr": 0.5, "accuracy": 0.0}
    vectors[3] = (0.4, 0.95)
    assert made.score("dev", vectors) == {"mrr": 1.0, "accuracy": 1.0}


@pytest.mark.slow
def test_microbatches_and_devices_change_nothing(init, table, tmp_path):
    """Invariants 4 and 5, by the gradient cache."""
    found = []
    for devices, microbatches in ((1, 1), (2, 2)):
        changes = {"data.microbatches": str(microbatches), "data.batch_size": "16"}
        recipe = configs.load_config("colbert:tiny", OVERRIDES | changes)
        made = finetune_job.prepare(recipe, init=init, data=str(table), workdir=tmp_path)
        sizes = {"data": devices, "fsdp": 1, "tensor": 1, "sequence": 1}
        made = dataclasses.replace(made, mesh=sharding.make_mesh(sizes, jax.devices()[:devices]))
        trainer = made.trainer(0)
        state = finetune_job.init_state(made, trainer)
        _, batch = next(made.dataset.batches["train"].training_batches())
        _, metrics = trainer.train_step(state, sharding.to_global(batch, made.mesh))
        found.append([float(metrics[name]) for name in ("colbert/loss", "gradient_norm")])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


@pytest.mark.parametrize(
    ("rows", "changes", "printed"),
    [
        ([{"text": "mill"}] * 3, {}, "got one column of text, 'text'"),
        ([{"query": "mill", "passage": "river"}] * 3, {}, "got 1 pair.s. without candidates"),
        (ROWS, {"task.query_length": "3"}, "query_length: got 3, expected 4 to 12"),
        (ROWS, {"task.query_length": "13"}, "query_length: got 13, expected 4 to 12"),
    ],
)
def test_user_errors_are_one_line(init, tmp_path, rows, changes, printed):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = configs.load_config("colbert:tiny", OVERRIDES | changes)
    with pytest.raises(UserError, match=printed) as error:
        finetune_job.prepare(
            recipe, init=init, data=str(tmp_path / "rows.jsonl"), workdir=tmp_path / "run"
        )
    assert "\n" not in str(error.value)
