"""`bertjax.load`: a trained model in Python, against its modules applied by hand."""

import pathlib
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.inference.text_encoder import TextEncoder
from bertjax.tokenizers import tokenizer

SAVED = pathlib.Path(__file__).parent.parent / "data_fixtures" / "saved_runs"
TEXTS = ["the cat", "a dog sat on the mat and slept", "the", "one two three"]


@pytest.fixture(scope="module")
def bert():
    return bertjax.load(SAVED / "run")


@pytest.fixture(scope="module")
def classifier():
    return bertjax.load(SAVED / "finetuned" / "seed_0")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef", ""]))
    return tokenizer.load(path)


def test_texts_and_pairs_share_a_batch(words):
    encoder = TextEncoder(words, max_length=20)
    batch = encoder(["a b", ("c", "d e f"), "f"])
    np.testing.assert_array_equal(
        batch["input_ids"],
        [[2, 5, 6, 3, 0, 0, 0], [2, 7, 3, 8, 9, 10, 3], [2, 10, 3, 0, 0, 0, 0]],
    )
    np.testing.assert_array_equal(batch["segment_ids"], [[0] * 7, [0, 0, 0, 1, 1, 1, 1], [0] * 7])
    np.testing.assert_array_equal(batch["attention_mask"].sum(1), [4, 7, 3])
    assert encoder("a b")["input_ids"].shape == (1, 4)
    assert encoder.mask_id == words.mask_id
    np.testing.assert_array_equal(encoder("a \ud800 b")["input_ids"], [[2, 5, 1, 6, 3]])


def test_max_length_pads_and_truncates_the_longer_text(words):
    encoder = TextEncoder(words, max_length=20)
    batch = encoder([("a b c d", "e f"), "a b c d e f"], max_length=6)
    np.testing.assert_array_equal(batch["input_ids"], [[2, 5, 6, 3, 9, 3], [2, 5, 6, 7, 8, 3]])
    assert encoder("a", max_length=6)["input_ids"].shape == (1, 6)
    last = TextEncoder(words, max_length=20, cls_last=True)(["a", ("b", "c")], max_length=5)
    np.testing.assert_array_equal(last["input_ids"], [[5, 3, 2, 0, 0], [6, 3, 7, 3, 2]])
    np.testing.assert_array_equal(last["segment_ids"], [[0, 0, 2, 0, 0], [0, 0, 1, 1, 2]])


@pytest.mark.parametrize(
    ("texts", "max_length", "message"),
    [
        ([], None, "texts: got none"),
        (["a " * 21], None, r"got 23 tokens, expected at most 20, the model's positions"),
        (["a"], 21, "max_length: got 21, expected 3 to 20"),
        ([("a", "b")], 4, "max_length: got 4, expected 5 to 20"),
        ({"text": "a"}, None, "texts: got {'text': 'a'}, expected a text or a pair of texts, or a"),
        ([("a", "b", "c")], None, r"text 1: got \('a', 'b', 'c'\), expected a text or a pair"),
        (["a", None], None, "text 2: got None, expected a text or a pair of texts"),
        (b"a", None, "texts: got b'a'"),
    ],
)
def test_texts_that_do_not_fit(words, texts, max_length, message):
    with pytest.raises(bertjax.UserError, match=message):
        TextEncoder(words, max_length=20)(texts, max_length=max_length)


def test_a_batch_is_encoded_as_by_the_module(bert):
    batch = jax.tree.map(jnp.asarray, bert.tokenizer(TEXTS, max_length=16))
    encoded = bert(batch)
    applied = bert.module.apply({"params": bert.params}, batch, train=False)
    for made, expected in zip(jax.tree.leaves(encoded), jax.tree.leaves(applied), strict=True):
        np.testing.assert_allclose(made, expected, atol=1e-5)
    assert encoded.sequence.shape == (4, 16, bert.config.model.hidden_size)
    assert encoded.pooled.shape == (4, bert.config.model.hidden_size)


def test_logits_are_those_of_the_predicted_masks(bert):
    (candidates,) = bert.fill_mask(["the [MASK] cat"], top_k=3)
    ids, *others = bert.tokenizer.encode_batch(["the", "cat"])
    row = [bert.tokenizer.cls_id, *ids, bert.tokenizer.mask_id, *others[0], bert.tokenizer.sep_id]
    batch = {"input_ids": np.array([row]), "attention_mask": np.ones((1, len(row)), bool)}
    probabilities = jax.nn.softmax(bert.logits(batch)[0, 1 + len(ids)])
    assert bert.logits(batch).shape == (1, len(row), bert.tokenizer.vocab_size)
    expected = np.sort(probabilities)[::-1][:3]
    np.testing.assert_allclose([c.probability for c in candidates], expected, rtol=1e-4)
    both = bert.fill_mask("the [MASK] cat [MASK]", top_k=2)
    assert [len(place) for place in both] == [2, 2]
    assert bert.fill_mask("the [MASK] cat", top_k=3) == candidates
    assert bert.fill_mask([], top_k=3) == []


def test_embeddings_are_means_over_the_tokens_of_each_sequence(bert):
    vectors = bert.embed(TEXTS, batch_size=2)
    batch = bert.tokenizer(TEXTS)
    sequence = np.asarray(bert(batch).sequence)
    for vector, row, mask in zip(vectors, sequence, batch["attention_mask"], strict=True):
        np.testing.assert_allclose(vector, row[: mask.sum()].mean(0), atol=1e-5)
    np.testing.assert_allclose(bert.embed(TEXTS[1]), vectors[1], atol=1e-5)
    np.testing.assert_allclose(bert.embed(TEXTS, pooling="cls"), sequence[:, 0], atol=1e-5)
    assert bert.embed([]).shape == (0, bert.config.model.hidden_size)


def test_a_classifier_gives_the_probabilities_of_its_head(classifier):
    pairs = [("the cat", "a dog"), ("one", "one two")]
    found = classifier.classify(pairs)
    head = classifier.load_params("glue")["glue"]["classifier"]
    (dense,) = head.values()
    pooled = classifier(classifier.tokenizer(pairs)).pooled
    expected = jax.nn.softmax(pooled @ dense["kernel"] + dense["bias"])
    probabilities = [list(row["probabilities"].values()) for row in found]
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert classifier.classify(pairs[0])["label"] == found[0]["label"]
    assert classifier.classify([]) == []
    rows = [{"label": 0, "sentence2": second, "sentence1": first} for first, second in pairs]
    assert classifier.classify(rows) == found


def test_a_saved_model_loads_as_the_same_model(bert, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTJAX_CACHE", str(tmp_path / "cache"))
    bert.save_pretrained(tmp_path / "saved")
    for _ in range(2):  # imported, then read from the cache
        again = bertjax.load(tmp_path / "saved", precision="float32")
        batch = again.tokenizer(TEXTS)
        np.testing.assert_allclose(again(batch).sequence, bert(batch).sequence, atol=1e-5)
    assert len(list((tmp_path / "cache" / "imported").glob("*/config.json"))) == 1


def test_methods_without_a_head_are_refused_by_name(bert, classifier):
    for call, message in [
        (lambda: bert.classify("a"), "no head for text-classification: got mlm"),
        (lambda: bert.generate("a"), "has no objective causal_lm"),
        (lambda: classifier.fill_mask("a [MASK]"), "has no objective mlm"),
        (lambda: classifier.tag("a"), "no head for token-classification: got glue"),
        (lambda: classifier.logits({}), "has no language model head"),
        (lambda: classifier.classify("a"), r"got 1 text\(s\), expected 2: sentence1, sentence2"),
        (lambda: bert.embed("a", pooling="max"), "pooling: got 'max', expected one of mean,"),
        (
            lambda: classifier.classify([{"a": "b", "sentence2": "c"}]),
            "got a dict with a, sentence2, expected the columns of the training data: sentence1, s",
        ),
        (lambda: classifier.classify([1]), "text 1: got 1, expected a text or a pair"),
        (lambda: bert.fill_mask([None]), "text 1: got None, expected a text$"),
        (lambda: bert.fill_mask("a [MASK]", top_k=1.5), "top_k: got 1.5, expected an integer"),
        (lambda: bert.embed([("a", "b")]), r"text 1: got \('a', 'b'\), expected a text$"),
        (lambda: bert(["a"]), r"batch: got \['a'\], .*pass model.tokenizer\(texts\)"),
        (lambda: bertjax.load(SAVED / "none"), "is not a run"),
    ]:
        with pytest.raises(bertjax.UserError, match=message):
            call()


def test_the_python_section_of_the_readme_runs(root, tmp_path, monkeypatch):
    shutil.copytree(SAVED / "run", tmp_path / "runs" / "bert")
    shutil.copytree(SAVED / "finetuned", tmp_path / "runs" / "rte")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(
        r"```python\n(import bertjax\n.+?)```", (root / "README.md").read_text(), re.S
    )
    found = {}
    # Outside of jit the annotations of this package, checked in tests, refuse numpy arrays.
    code = code.replace(", batch, train", ", jax.tree.map(jax.numpy.asarray, batch), train")
    exec(code, {"jax": jax}, found)
    assert found["vectors"].shape == (2, found["bert"].config.model.hidden_size)
    assert (tmp_path / "bert-hf" / "model.safetensors").is_file()
    assert set(found["answers"][0]["probabilities"]) == {"entailment", "not_entailment"}


def test_importing_the_package_imports_no_jax():
    code = "import sys, bertjax; bertjax.UserError; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
