"""Models as encoders of mteb: with a stub of the package, and in one task of the package itself."""

import pathlib
import sys
import types
import warnings

import numpy as np
import pytest

import bertjax
from bertjax.errors import UserError
from bertjax.inference import similarity

RUN = pathlib.Path(__file__).parent.parent / "data_fixtures" / "saved_runs" / "run"
TEXTS = ["the cat", "a dog sat on the mat and slept", ""]


@pytest.fixture(scope="module")
def bert():
    return bertjax.load(RUN, precision="float32")


def test_batches_are_embedded_in_order(bert):
    batches = [{"text": TEXTS[:2], "title": ["", ""]}, {"text": TEXTS[2:]}]
    found = bert.encode(iter(batches), task_metadata=None, hf_split="dev", batch_size=2)
    np.testing.assert_allclose(found, bert.embed(TEXTS), atol=1e-6)


def test_similarities_are_cosines(bert):
    first, second = np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[0.0, 5.0], [2.0, 0.0]])
    np.testing.assert_allclose(bert.similarity(first, second), [[0.8, 0.6], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(bert.similarity_pairwise(first, second), [0.8, 0], atol=1e-6)


def test_unsupported_requests_of_mteb_are_one_line(bert):
    with pytest.raises(
        UserError, match=r"got pooling='cls', expected batch_size only; set prompts"
    ):
        bert.encode([], pooling="cls")
    with pytest.raises(UserError, match="got inputs with image, expected a task of text"):
        bert.encode([{"image": []}])


def test_a_revision_identifies_the_vectors(bert, monkeypatch):
    models = types.ModuleType("mteb.models")
    models.ModelMeta = lambda **fields: fields
    monkeypatch.setitem(sys.modules, "mteb", types.ModuleType("mteb"))
    monkeypatch.setitem(sys.modules, "mteb.models", models)
    found = bert.mteb_model_meta
    assert found["name"] == "bertjax/saved_runs-run"
    assert found["embed_dim"] == bert.embed("a").size
    assert found["revision"].split("-")[0] == bert.source.checkpoint.name
    assert bertjax.load(RUN, precision="float32").mteb_model_meta == found
    other = bertjax.load(RUN, precision="bfloat16").mteb_model_meta
    assert other["revision"] != found["revision"]
    monkeypatch.setitem(sys.modules, "mteb.models", None)
    with pytest.raises(UserError, match=r"^mteb: .*; pip install 'bertjax\[mteb\]'$"):
        _ = bert.mteb_model_meta


@pytest.mark.slow
def test_a_local_task_has_the_scores_of_evaluate_sts(minilm, shared_data, monkeypatch):
    """STS-B dev with MiniLM; the Spearman correlation of PyTorch is 0.86716."""
    pytest.importorskip("mteb", reason="the extra mteb")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of mteb and of what it imports
        spearman = evaluate_sts_in_mteb(shared_data, minilm)
    assert spearman == pytest.approx(0.86716, abs=1e-5)


def evaluate_sts_in_mteb(data, folder) -> float:
    import datasets
    import mteb
    from mteb.abstasks import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    read = similarity.read(str(data / "glue"), {"text": "", "text_pair": "", "label": ""})

    class LocalSTS(AbsTaskSTS):
        metadata = TaskMetadata(
            name="LocalSTS",
            dataset={"path": "local", "revision": "1"},
            description="STS-B, dev, from a file.",
            reference=None,
            type="STS",
            category="t2t",
            eval_splits=["dev"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )

        def load_data(self, **options):
            columns = dict(zip(("sentence1", "sentence2"), read.texts, strict=True))
            dev = datasets.Dataset.from_dict(columns | {"score": np.asarray(read.labels)})
            self.dataset, self.data_loaded = datasets.DatasetDict({"dev": dev}), True

    model = bertjax.load(folder, precision="float32")
    found = mteb.evaluate(model, tasks=[LocalSTS()], cache=None, co2_tracker=False)
    scores = found.task_results[0].scores["dev"][0]
    assert scores["spearman"] == pytest.approx(scores["cosine_spearman"], abs=1e-6)
    return scores["cosine_spearman"]
