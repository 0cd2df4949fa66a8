"""Folders of sentence-transformers: export, import, and how their models embed texts."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import bertjax
from bertjax.commands import embed, export
from bertjax.errors import UserError
from bertjax.huggingface import importing
from bertjax.inference import embeddings

TEXTS = ["a b c d e f g h i j k l m n o p q r", "x y", "q w e r t y", "b"]
MAX_LENGTH = 12
PROMPTS = "config_sentence_transformers.json"


@pytest.fixture(scope="module")
def run(save_pretrained, tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("st")
    save_pretrained(folder / "hf_model")
    importing.write(importing.read(folder / "hf_model"), folder / "run")
    (folder / "texts.txt").write_text("\n".join([*TEXTS, ""]))
    return folder / "run"


@pytest.fixture(scope="module")
def exported(run) -> pathlib.Path:
    """Mean pooling, unit vectors and a maximum length that truncates the first text."""
    target = run.parent / "exported"
    export_run(run, target, "--normalize", "--max_length", MAX_LENGTH)
    return target


def export_run(run, target, *options):
    words = ["--model", run, "--output", target, "--format", "sentence-transformers", *options]
    export.main([str(word) for word in words])


def vectors(model, out, *options):
    source = pathlib.Path(model).parent / "texts.txt"
    words = ["--model", model, "--input", source, "--output", out, *options]
    embed.main([str(word) for word in [*words, "--truncate", "--precision", "float32"]])
    return np.load(out)


def test_an_export_has_the_encoder_and_its_pooling(exported):
    assert json.loads((exported / "config.json").read_text())["architectures"] == ["BertModel"]
    modules = json.loads((exported / "modules.json").read_text())
    assert [module["type"].split(".")[-1] for module in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    pooling = json.loads((exported / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 16
    assert [name for name, value in pooling.items() if value is True] == [
        "pooling_mode_mean_tokens"
    ]
    card = (exported / "README.md").read_text()
    assert "library_name: sentence-transformers" in card
    assert "pipeline_tag: sentence-similarity" in card
    assert "from sentence_transformers import SentenceTransformer" in card


def test_a_folder_determines_pooling_length_and_normalisation(run, exported, tmp_path):
    found = vectors(exported, tmp_path / "a.npy")
    plain = vectors(run, tmp_path / "b.npy", "--pooling", "mean", "--max_length", MAX_LENGTH)
    assert found.shape == (len(TEXTS), 16)
    assert found.dtype == np.float32
    unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(found, unit, atol=1e-6)
    loaded = bertjax.load(exported, precision="float32")
    np.testing.assert_allclose(loaded.embed(TEXTS), found, atol=1e-6)
    options = {"batch_size": 8, "precision": "float32", "progress": lambda share, text: None}
    embedder = embeddings.load(loaded, pooling="", max_length=0, **options)
    np.testing.assert_allclose(np.concatenate(list(embedder.embed(TEXTS, total=4))), found, 1e-5)
    assert embedder.num_truncated == 1


def test_options_change_the_settings_of_a_folder(run, exported, tmp_path):
    found = vectors(exported, tmp_path / "a.npy", "--pooling", "cls", "--no-normalize")
    plain = vectors(run, tmp_path / "b.npy", "--pooling", "cls", "--max_length", MAX_LENGTH)
    np.testing.assert_allclose(found, plain, atol=1e-6)
    with pytest.raises(UserError, match=r"got a row per token .* expected one vector per text"):
        vectors(exported, tmp_path / "c.npy", "--pooling", "none")
    with pytest.raises(UserError, match=r"got layers \[0, 1, 2\] .* expected one vector per text"):
        vectors(exported, tmp_path / "c.npy", "--layers", "all")


def changed(exported, folder, file, **fields) -> pathlib.Path:
    """A copy of the folder with other fields in a file, next to the texts."""
    shutil.copytree(exported, folder)
    shutil.copy(exported.parent / "texts.txt", folder.parent)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | fields))
    return folder


@pytest.mark.parametrize(
    "fields", [{"pooling_mode": "weightedmean"}, {"pooling_mode_weightedmean_tokens": True}]
)
def test_weighted_pooling_is_read_from_files_of_any_release(run, exported, tmp_path, fields):
    fields |= {"pooling_mode_mean_tokens": False}
    model = changed(exported, tmp_path / "model", "1_Pooling/config.json", **fields)
    options = ("--pooling", "weighted", "--normalize", "--max_length", MAX_LENGTH)
    expected = vectors(run, tmp_path / "b.npy", *options)
    np.testing.assert_allclose(vectors(model, tmp_path / "a.npy"), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("file", "fields", "printed"),
    [
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "pooling cls and mean"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pooling max"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt=false"),
        (PROMPTS, {"similarity_fn_name": "euclidean"}, "similarity_fn_name=euclidean"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case=true"),
    ],
)
def test_settings_that_are_not_supported_are_refused(exported, tmp_path, file, fields, printed):
    model = changed(exported, tmp_path / "model", file, **fields)
    with pytest.raises(UserError, match=f"got {printed}, expected .*; pass --pooling"):
        vectors(model, tmp_path / "a.npy")
    assert vectors(model, tmp_path / "a.npy", "--pooling", "mean").shape == (4, 16)


def test_prompts_of_a_folder_are_put_before_texts(exported, tmp_path):
    """A default prompt, one of queries, and one of documents by a further name."""
    prompts = {"query": "q w ", "document": "", "passage": "p ", "sts": "x "}
    model = changed(exported, tmp_path / "m", PROMPTS, prompts=prompts, default_prompt_name="sts")
    loaded = bertjax.load(model, precision="float32")
    plain = bertjax.load(exported, precision="float32")
    for name, prompt in {"": "x ", **prompts, "document": "p "}.items():
        expected = plain.embed([prompt + text for text in TEXTS])
        np.testing.assert_allclose(loaded.embed(TEXTS, prompt_name=name), expected, atol=1e-6)
    found = vectors(model, tmp_path / "a.npy", "--prompt_name", "query")
    np.testing.assert_allclose(found, loaded.embed(TEXTS, prompt="q w "), atol=1e-6)
    found = vectors(model, tmp_path / "b.npy", "--prompt", "")
    np.testing.assert_allclose(found, plain.embed(TEXTS), atol=1e-6)
    export_run(loaded.name, tmp_path / "again", "--query_prompt", "r ", "--document_prompt", "")
    stored = json.loads((tmp_path / "again" / PROMPTS).read_text())
    assert stored["prompts"] == {"query": "r ", "sts": "x "}
    assert stored["default_prompt_name"] == "sts"


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--prompt_name", "query"], "got 'query', expected none, as the model has no prompts"),
        (["--prompt_name", "query", "--prompt", "q "], "got 'query' and the prompt 'q '; leave"),
        (["--pooling", "none", "--prompt", "q "], "got 'q ' with a vector for each token"),
    ],
)
def test_prompts_that_do_not_apply_are_one_line(exported, tmp_path, options, printed):
    with pytest.raises(UserError, match=printed):
        vectors(exported, tmp_path / "a.npz", *options)


def test_a_module_that_bertjax_does_not_have_is_refused(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "model")
    path = tmp_path / "model" / "modules.json"
    modules = json.loads(path.read_text())
    dense = {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    path.write_text(json.dumps([*modules[:2], dense]))
    with pytest.raises(UserError, match="the modules Transformer, Pooling, Dense, expected"):
        bertjax.load(tmp_path / "model").embed(TEXTS)
    path.write_text('{"a": 1}')
    with pytest.raises(UserError, match="expected a list of objects with path and type"):
        bertjax.load(tmp_path / "model")
    fields = {"prompts": {"query": "q "}, "default_prompt_name": "sts"}
    with pytest.raises(UserError, match="default_prompt_name='sts', expected texts by name"):
        bertjax.load(changed(exported, tmp_path / "prompted", PROMPTS, **fields))


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--generator"], "--generator has no effect"),
        (["--max_length", "25"], "got 25, expected at most 24"),
    ],
)
def test_impossible_exports_are_one_line(run, tmp_path, options, printed):
    with pytest.raises(UserError, match=printed):
        export_run(run, tmp_path / "out", *options)
    assert not list(tmp_path.iterdir())


def test_options_of_pooling_need_the_format(run, tmp_path):
    with pytest.raises(UserError, match="--pooling has no effect"):
        export.main(["--model", str(run), "--output", str(tmp_path / "o"), "--pooling", "cls"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [["--normalize", "--max_length", MAX_LENGTH], ["--pooling", "cls"], ["--pooling", "weighted"]],
)
def test_sentence_transformers_computes_the_same_vectors(run, tmp_path, options):
    library = pytest.importorskip(
        "sentence_transformers", reason="needs sentence-transformers, of the group test-all"
    )
    target = run.parent / f"theirs_{options[1]}"
    export_run(run, target, *options)
    found = library.SentenceTransformer(str(target), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, vectors(target, tmp_path / "a.npy"), atol=1e-5)
    # As the library itself writes it.
    saved = run.parent / f"again_{options[1]}"
    library.SentenceTransformer(str(target), device="cpu").save(str(saved))
    again = vectors(saved, tmp_path / "b.npy")
    np.testing.assert_allclose(again, found, atol=1e-5)


@pytest.mark.slow
def test_prompts_are_those_of_sentence_transformers(run, tmp_path):
    library = pytest.importorskip(
        "sentence_transformers", reason="needs sentence-transformers, of the group test-all"
    )
    target = run.parent / "prompted"
    export_run(run, target, "--query_prompt", "q w ", "--document_prompt", "p ")
    reference = library.SentenceTransformer(str(target), device="cpu")
    for name, found in {
        "query": reference.encode(TEXTS, prompt_name="query"),
        "document": reference.encode_document(TEXTS),
    }.items():
        own = vectors(target, tmp_path / f"{name}.npy", "--prompt_name", name)
        np.testing.assert_allclose(found, own, atol=1e-5)
    reference.default_prompt_name = "document"
    reference.save(str(run.parent / "default"))
    found = vectors(run.parent / "default", tmp_path / "default.npy")
    np.testing.assert_allclose(found, reference.encode(TEXTS), atol=1e-5)
