"""Fine-tuning of embeddings, and the use of their runs: embed, evaluate, predict, export."""

import dataclasses
import itertools
import json
import os
import types

import jax
import numpy as np
import pytest

import bertjax
from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import exporting, run_cache
from bertjax.inference import embeddings, evaluation, predict
from bertjax.runs import finetune, finetune_job
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train import sharding
from bertjax.train.checkpoint.restore import load_numpy
from bertjax.train.metric_records import read_metrics
from bertjax.validation import config as validation_config

WORDS = ["mill", "river", "north", "old", "stone", "oak", "rain", "ship"]
SCORED = [(f"{a} {b}", f"{a} {c}") for a in WORDS for b, c in itertools.pairwise(WORDS)]
TRIPLES = [(WORDS[n % 8], WORDS[(n + 1) % 8], WORDS[(n + 3) % 8]) for n in range(32)]
OVERRIDES = {"data.batch_size": "8", "data.eval_batch_size": "8", "model.precision": "float32"}


@pytest.fixture(scope="module")
def init(random_run):
    tokenizer = tokenizers.train([" ".join(WORDS)] * 4, kind="wordpiece", vocab_size=60)
    return f"random:{random_run(tokenizer)}"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Pairs that share a word, each with a hard negative."""
    rows = [
        {"anchor": f"{a} {b}", "positive": f"{b} {a} {a}", "negative": f"{b} {c}"}
        for a, b, c in TRIPLES
    ]
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def job(init, table, workdir, **changes):
    recipe = configs.load_config("pairs:tiny", OVERRIDES | changes)
    return finetune_job.prepare(recipe, init=init, data=str(table), workdir=workdir)


@pytest.fixture(scope="module")
def run(init, table, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "pairs"
    changes = {
        "task.matryoshka_dims": "(4,)",
        "data.max_seq_length": "8",
        "log_every": "1",
        "num_train_epochs": "6",
        "task.query_prompt": "ship ",
        "task.document_prompt": "stone ",
    }
    recipe = configs.load_config("pairs:tiny", OVERRIDES | changes | {"data.padded_lengths": "()"})
    finetune.finetune(recipe, init=init, data=str(table), workdir=str(workdir))
    return workdir


def test_a_run_is_a_model_of_embeddings(run, table, tmp_path):
    results = json.loads((run / "results.json").read_text())
    scores = results["each_seed"][0]["scores"]
    assert set(scores) == {"dev/mrr", "dev/accuracy", "dev/mrr_4", "dev/accuracy_4", "dev/score"}
    assert scores["dev/score"] == scores["dev/mrr"]
    lines = (run / "seed_0" / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    losses = [row["pairs/loss"] for row in metrics if "pairs/loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    model = bertjax.load(run, precision="float32")
    texts = ["mill river", "old oak old oak old oak old oak", "rain"]
    vectors = model.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    # As the head computes them, truncated to the length of the recipe.
    batch = model.tokenizer(texts, max_length=8)
    sequence = np.asarray(model(batch).sequence)
    mask = batch["attention_mask"][..., None]
    mean = (sequence * mask).sum(axis=1) / mask.sum(axis=1)
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    first, second = (model.embed(texts, prompt_name=name) for name in ("query", "document"))
    np.testing.assert_allclose(first, model.embed([f"ship {each}" for each in texts]))
    (answer,) = predict.load(run_cache.find_run(run), precision="float32").predict(
        [("a", "mill river\train")], 8
    )
    assert answer["cosine"] == pytest.approx(float(first[0] @ second[2]), abs=1e-5)
    source = exporting.find(str(run))
    exporting.write(source, tmp_path / "st", embedding=exporting.with_pooling(source))
    again = bertjax.load(tmp_path / "st", precision="float32")
    np.testing.assert_allclose(again.embed(texts), vectors, atol=1e-5)
    # As mteb calls it.
    for kind, expected in {"query": first, "document": second}.items():
        found = again.encode([{"text": texts}], prompt_type=types.SimpleNamespace(value=kind))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    exporting.write(source, tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"] == [
        "BertModel"
    ]


def test_a_run_is_evaluated_with_its_own_settings(run, tmp_path):
    table = tmp_path / "scored.csv"
    rows = [f"{a},{b},{n % 4}" for n, (a, b) in enumerate(SCORED[:9])]
    table.write_text("\n".join(["text,text_pair,score", *rows, ""]))
    found = evaluation.sts(str(run), str(table), precision="float32")
    explicit = {"pooling": "mean", "max_length": 8, "precision": "float32"}
    assert found == evaluation.sts(str(run), str(table), prompt="", **explicit)
    named = evaluation.sts(str(run), str(table), prompt_name="query", **explicit)
    assert named == evaluation.sts(str(run), str(table), prompt="ship ", **explicit) != found

    (tmp_path / "qrels").mkdir()
    for name, texts in {"corpus": WORDS, "queries": [f"{word} north" for word in WORDS]}.items():
        lines = [json.dumps({"_id": f"{n}", "text": text}) for n, text in enumerate(texts)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*lines, ""]))
    judged = "".join(f"{n}\t{(n + 3) % 8}\t1\n" for n in range(8))
    (tmp_path / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    found = evaluation.retrieval(str(run), str(tmp_path), **explicit)
    prompts = {"query_prompt": "ship ", "document_prompt": "stone "}
    assert found == evaluation.retrieval(str(run), str(tmp_path), **prompts, **explicit)
    for name in prompts:
        assert found != evaluation.retrieval(str(run), str(tmp_path), **{name: ""}, **explicit)


def test_a_teacher_is_distilled_by_dot_products(init, table, tmp_path):
    """With microbatches and narrower widths; the run compares embeddings as it was trained."""
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    scored = [row | {"scores": [n % 5, -(n % 3)]} for n, row in enumerate(rows)]
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))
    changes = {"task.loss_type": "margin_mse", "task.matryoshka_dims": "(4,)"}
    losses = []
    for count in ("1", "2"):
        workdir = tmp_path / f"run_{count}"
        recipe = configs.load_config(
            "pairs:tiny", OVERRIDES | changes | {"data.microbatches": count, "log_every": "1"}
        )
        finetune.finetune(
            recipe, init=init, data=str(tmp_path / "scored.jsonl"), workdir=str(workdir)
        )
        lines = (workdir / "seed_0" / "metrics.jsonl").read_text().splitlines()
        losses.append([row["pairs/loss"] for row in map(json.loads, lines) if "pairs/loss" in row])
    np.testing.assert_allclose(*losses, rtol=1e-3)
    source = exporting.find(str(workdir))
    exporting.write(source, tmp_path / "st", embedding=exporting.with_pooling(source))
    stored = json.loads((tmp_path / "st" / "config_sentence_transformers.json").read_text())
    assert stored["similarity_fn_name"] == "dot"
    pairs = [f"{word},{WORDS[n - 1]},{n}" for n, word in enumerate(WORDS)]
    (tmp_path / "sts.csv").write_text("\n".join(["sentence1,sentence2,score", *pairs, ""]))
    for folder in (workdir, tmp_path / "st"):
        model = bertjax.load(folder, precision="float32")
        vectors = model.embed(WORDS)
        assert np.abs(np.linalg.norm(vectors, axis=1) - 1).min() > 0.01
        np.testing.assert_allclose(model.similarity(vectors, vectors), vectors @ vectors.T)
        options = {"pooling": "", "max_length": 0, "batch_size": 8, "precision": "float32"}
        embedder = embeddings.load(model, **options, progress=lambda share, text: None)
        (found,) = embedder.embed(WORDS, total=8)
        np.testing.assert_allclose(found, vectors, atol=1e-5)
        scores = evaluation.sts(str(folder), str(tmp_path / "sts.csv"), **options)
        products = (vectors * np.roll(vectors, 1, axis=0)).sum(axis=1)
        expected = np.corrcoef(products, np.arange(8))[0, 1]
        assert scores["pearson_dot"] == pytest.approx(expected, abs=1e-5)
        assert set(scores) == {"pearson_dot", "spearman_dot", "pairs", "truncated"}


def steps(task_job, devices, microbatches=1):
    """Loss, accuracy and gradient norm of two steps, with dropout; and the parameters."""
    task_job = dataclasses.replace(
        task_job,
        config=configs.replace_fields(task_job.config, {"data.microbatches": microbatches}),
    )
    sizes = {"data": devices, "fsdp": 1, "tensor": 1, "sequence": 1}
    task_job = dataclasses.replace(
        task_job, mesh=sharding.make_mesh(sizes, jax.devices()[:devices])
    )
    trainer = task_job.trainer(0)
    state, found = finetune_job.init_state(task_job, trainer), []
    for _, batch in itertools.islice(task_job.dataset.batches["train"].training_batches(), 2):
        state, metrics = trainer.train_step(state, sharding.to_global(batch, task_job.mesh))
        names = ("pairs/loss", "pairs/accuracy", "gradient_norm")
        found.append([float(metrics[name]) for name in names])
    return np.array(found), jax.device_get(state.params)


@pytest.fixture(scope="module")
def alone(init, table, tmp_path_factory):
    """Two steps on one device, and the job."""
    workdir = tmp_path_factory.mktemp("alone")
    task_job = job(init, table, workdir, **{"data.batch_size": "16"})
    return task_job, *steps(task_job, 1)


@pytest.mark.parametrize(("devices", "microbatches"), [(8, 2), (8, 1), (1, 4)])
@pytest.mark.slow
def test_negatives_are_those_of_the_global_batch(alone, devices, microbatches):
    """Invariants 4 and 5: neither devices nor microbatches change a step (gradient cache)."""
    task_job, metrics, params = alone
    found, found_params = steps(task_job, devices, microbatches)
    np.testing.assert_allclose(found, metrics, rtol=1e-4)
    # Adam's first steps have the sign of the gradient: small ones may differ.
    for one, other in zip(*map(jax.tree.leaves, (params, found_params)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


@pytest.mark.slow
def test_packed_texts_stay_together(init, table, tmp_path):
    """Invariants 4 and 5 for texts that share rows, with dropout."""
    changes = {"data.batch_size": "16", "data.packed_examples": "8", "data.max_seq_length": "8"}
    task_job = job(init, table, tmp_path, **changes)
    metrics, _ = steps(task_job, 1)
    assert task_job.pretrainer.rows_per_example() == 8
    for devices, microbatches in ((2, 1), (1, 2)):
        found, _ = steps(task_job, devices, microbatches)
        np.testing.assert_allclose(found, metrics, rtol=1e-4)


SGD = {
    "optimizer.adam_eps": "0.9",
    "optimizer.learning_rate": "0.9",
    "optimizer.weight_decay": "0",
    "optimizer.warmup_share": "0",
    "optimizer.max_grad_norm": "0",
    "data.batch_size": "16",
    "num_train_epochs": "1",
    "log_every": "1",
}
"""Adam, almost without normalisation: parameters differ as the gradients do."""


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.slow
def test_negatives_are_those_of_all_processes(init, table, tmp_path, run_bertjax, microbatches):
    """Two processes with two devices each, against one with one."""
    changes, found = OVERRIDES | SGD, []
    recipe = configs.load_config("pairs:tiny", changes)
    finetune.finetune(recipe, init=init, data=str(table), workdir=str(tmp_path / "one"))
    words = ["--config", "pairs:tiny", "--init", init, "--data", table, "--workdir"]
    words += [tmp_path / "two", f"--config.data.microbatches={microbatches}"]
    words += [f"--config.{name}={value}" for name, value in changes.items()]
    launch = ("launch", "local", "--processes", 2, "--devices", 2, "--", "finetune")
    done = run_bertjax(*launch, *words)
    assert done.returncode == 0, done.stderr
    for name in ("one", "two"):
        folder = tmp_path / name / "seed_0"
        rows = [row for row in read_metrics(folder) if "pairs/loss" in row]
        params = load_numpy(folder / "checkpoints" / str(len(rows)), "params")
        values = [[row[key] for key in ("pairs/loss", "gradient_norm")] for row in rows]
        found.append((np.array(values), jax.tree.leaves(params)))
    (metrics, params), (found_metrics, found_params) = found
    assert metrics[:, 1].min() > 0.1
    np.testing.assert_allclose(found_metrics, metrics, rtol=1e-5)
    for one, other in zip(params, found_params, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_processes_with_different_data_are_refused(init, table, tmp_path, run_bertjax, root):
    """Each process would take its rows from another batch."""
    rows = table.read_text().splitlines(keepends=True)
    for number in (0, 1):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "rows.jsonl").write_text("".join(rows[number:]))
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if number := os.environ.get('BERTJAX_PROCESS'):\n"
        f"    os.chdir(os.path.join({str(tmp_path)!r}, number))\n"
    )
    launch = ("launch", "local", "--processes", 2, "--devices", 1, "--", "finetune")
    words = ("--config", "pairs:tiny", "--init", init, "--data", "rows.jsonl", "--workdir")
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    done = run_bertjax(*launch, *words, tmp_path / "run", env=path)
    assert done.returncode == 2
    assert "the model or data of process 1 differs from that of process 0" in done.stderr


def test_microbatches_exclude_further_objectives():
    recipe = configs.load_config("pairs:tiny", {"data.microbatches": "2"})
    with recipe.unlocked():
        recipe.objectives = {"ponder": {"weight": 0.1}}
    with pytest.raises(UserError, match="and the run has further objectives"):
        validation_config.check(recipe)


@pytest.mark.parametrize(
    ("changes", "printed"),
    [
        ({"mesh.shard_optimizer": "true"}, "mesh.shard_optimizer: got True, expected False"),
        ({"task.matryoshka_dims": "(4, 16)"}, "expected matryoshka_dims below hidden_size"),
        ({"task.symmetric": "true", "task.loss_type": "cosent"}, "expected symmetric=False"),
        ({"task.temperature": "1.0", "task.loss_type": "cosine"}, "temperature has no effect"),
        ({"task.pooling": "max"}, "expected one of 'mean', 'weighted', 'cls'"),
    ],
)
def test_impossible_options_are_one_line(init, table, tmp_path, changes, printed):
    with pytest.raises(UserError, match=printed) as error:
        job(init, table, tmp_path, **changes)
    assert "\n" not in str(error.value)
