"""GPT-BERT: arrays of both layouts, the head's LayerNorm in the output layer, refused folders."""

import json

import numpy as np
import pytest

from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import importing, run_cache
from bertjax.huggingface.architectures.gpt_bert import column_factors
from bertjax.huggingface.model import read_arrays
from bertjax.tokenizers import tokenizer as tokenizers

D, H, F, N, BUCKETS, LONGEST = 12, 3, 20, 2, 4, 6
SIZES = {
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": LONGEST,
    "position_bucket_size": BUCKETS,
}
BLOCK = "encoder/layers/block"
SCALE, SHIFT = "mntp/transform/norm/scale", "mntp/transform/norm/bias"
TRIVIAL = {SCALE: np.ones(D, np.float32), SHIFT: np.zeros(D, np.float32)}
DECODER = "classifier.nonlinearity.5.weight"
WORDS = "embedding.word_embedding.weight"
AUTO_MAP = {"AutoModelForMaskedLM": "modeling_gpt_bert.GPTBERTForMaskedLM"}


@pytest.fixture(scope="module")
def tokenizer(gpt_bert_tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(gpt_bert_tokenizer)
    return tokenizers.load(path)


@pytest.fixture(scope="module")
def config_of(tokenizer):
    def make(recipe="", **model):
        config = configs.load_config(f"configs/gpt_bert.py:tiny{recipe}", [])
        with config.unlocked():
            config.model.update(SIZES, vocab_size=tokenizer.vocab_size, precision="float32")
            config.model.update(model)
        return config

    return make


@pytest.fixture(scope="module")
def exported(config_of, tokenizer, write_random_run, export_run, tmp_path_factory):
    """Random parameters, and the folder that a run with them is exported to."""
    folder = tmp_path_factory.mktemp("gpt_bert")
    params = write_random_run(folder / "run", config_of(), tokenizer)
    export_run(folder / "run", folder / "hf")
    return params, folder / "hf"


@pytest.fixture(scope="module")
def tied(config_of, tokenizer, write_random_run, export_run, tmp_path_factory):
    """The arrays and the config of a model whose head has a trivial LayerNorm, as released ones."""
    folder = tmp_path_factory.mktemp("tied")
    bias = np.arange(tokenizer.vocab_size, dtype=np.float32) * np.float32(-1)
    write_random_run(folder / "run", config_of(), tokenizer, TRIVIAL | {"mntp/bias": bias})
    export_run(folder / "run", folder / "hf")
    return read_arrays(folder / "hf"), json.loads((folder / "hf" / "config.json").read_text())


def community(arrays):
    """The arrays by the names of BabyLM-community, without the constants."""
    prefixes = {"transformer.": "model.", "embedding.": "model.embedding.", "classifier": "lm_head"}
    return {
        next(
            new + name.removeprefix(old) for old, new in prefixes.items() if name.startswith(old)
        ): a
        for name, a in arrays.items()
        if not name.endswith("position_indices")
    }


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes(), name
        assert found[name].dtype == array.dtype, name


def test_exported_arrays(exported):
    """Query and key, value and gate, gate and activated half, the weights of sums, constants."""
    params, folder = exported
    arrays, layer = read_arrays(folder), 1
    attention = {n: params[f"{BLOCK}/attention/{n}/kernel"][layer] for n in ("query", "key")}
    found = arrays["transformer.attention_layers.1.in_proj_qk.weight"]
    for name, rows in zip(("query", "key"), (found[:D], found[D:]), strict=True):
        np.testing.assert_array_equal(rows, attention[name].reshape(D, D).T)
    bias = [params[f"{BLOCK}/attention/{name}/bias"][layer].ravel() for name in ("value", "gate")]
    found = arrays["transformer.attention_layers.1.in_proj_vg.bias"]
    np.testing.assert_array_equal(found, np.concatenate(bias))
    halves = [params[f"{BLOCK}/feed_forward/{n}/kernel"][layer].T for n in ("gate", "intermediate")]
    found = arrays["transformer.mlp_layers.1.mlp.1.weight"]
    np.testing.assert_array_equal(found, np.concatenate(halves))
    alphas = [arrays[f"transformer.dwa_modules.alphas.{number}"] for number in range(2 * N)]
    assert [len(each) for each in alphas] == [2, 3, 4, 5]
    np.testing.assert_array_equal(np.concatenate(alphas), params["encoder/layers/depth_weights"])
    rows = arrays["transformer.attention_layers.1.position_indices"]
    assert rows.dtype == np.int64
    # Distances of at most half the buckets have rows of their own, around BUCKETS - 1.
    np.testing.assert_array_equal(rows[:, 0], [3, 4, 5, 6, 6, 6])
    np.testing.assert_array_equal(rows[0], [3, 2, 1, 0, 0, 0])


def test_the_norm_of_the_head_becomes_part_of_the_output_layer(exported, tmp_path):
    """Import restores the scale, bit for bit, from the table times one factor per column."""
    params, folder = exported
    arrays, words = read_arrays(folder), params["encoder/word_embeddings/embedding"]
    np.testing.assert_array_equal(arrays[WORDS], words)
    x = np.random.default_rng(1).normal(size=(5, D))
    expected = (x * params[SCALE] + params[SHIFT]) @ words.T + params["mntp/bias"]
    found = x @ arrays[DECODER].T + arrays["classifier.nonlinearity.5.bias"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    imported = importing.read(folder)
    changed = {SHIFT: TRIVIAL[SHIFT], "mntp/bias": arrays["classifier.nonlinearity.5.bias"]}
    assert_same_bits(dict(imported.params), params | changed)
    assert list(imported.config.objectives) == ["mntp"]
    assert imported.warnings == ()


def test_import_then_export_gives_the_same_folder(exported, export_run, tmp_path):
    _, folder = exported
    importing.write(importing.read(folder), tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "back")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes(), name


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "gpt_bert", "architectures": ["GPTBertForCausalLM", "GPTBertForMaskedLM"]},
        {"model_type": "bert", "auto_map": AUTO_MAP},
        {},
    ],
)
def test_the_community_layout(fields, tied, save_gpt_bert, export_run, tmp_path):
    """The arrays determine the layout; fields and names of the code's classes are kept."""
    arrays, config = tied
    config = {w: config[w] for w in config if w not in ("model_type", "architectures")} | fields
    config["num_layers"] = config.pop("num_hidden_layers")
    source = save_gpt_bert(tmp_path / "source", community(arrays), config)
    imported = importing.read(source)
    assert imported.warnings == ()
    np.testing.assert_array_equal(imported.params[SCALE], TRIVIAL[SCALE])
    importing.write(imported, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "back")
    found = read_arrays(tmp_path / "back")
    constants = {f"model.attention_layers.{layer}.position_indices" for layer in range(N)}
    assert found.keys() - constants == community(arrays).keys()
    assert_same_bits({n: a for n, a in found.items() if n not in constants}, community(arrays))
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written == config | {"num_hidden_layers": N}


def test_tied_arrays_are_equal_bit_for_bit(tied):
    arrays, _ = tied
    assert arrays[DECODER].tobytes() == arrays[WORDS].tobytes()
    assert np.signbit(arrays["classifier.nonlinearity.5.bias"]).all()  # the first is -0


def test_an_encoder_without_head(tied, save_gpt_bert, export_run, tmp_path):
    """Its names have no prefix in either layout."""
    arrays, config = tied
    bare = {n.removeprefix("model."): a for n, a in community(arrays).items() if "lm_head" not in n}
    source = save_gpt_bert(tmp_path / "source", bare, config | {"architectures": ["GPTBERT"]})
    imported = importing.read(source)
    assert (imported.config.imported.model_type, list(imported.config.objectives)) == (
        "gpt_bert_community",
        [],
    )
    importing.write(imported, tmp_path / "run")
    assert export_run(tmp_path / "run", tmp_path / "back").class_name == "GPTBERT"
    assert bare.keys() < read_arrays(tmp_path / "back").keys()


def test_a_folder_without_model_type_initialises_a_run(tied, save_gpt_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTJAX_CACHE", str(tmp_path / "cache"))
    arrays, config = tied
    config = {word: value for word, value in config.items() if word != "model_type"}
    source = save_gpt_bert(tmp_path / "source", arrays, config)
    assert run_cache.resolve(str(source)).config["imported"]["model_type"] == "gpt_bert"


def test_column_factors_are_exact():
    """Also next to a power of two, where the distance of neighbouring floats changes."""
    random = np.random.default_rng(0)
    words = random.normal(size=(7, 4000)).astype(np.float32)
    factors = random.normal(size=4000).astype(np.float32)
    factors[:400] = 1 + np.float32(2**-24) * np.arange(-200, 200)
    words[:, 500], factors[501], factors[500] = 0, 0, 1
    found = column_factors(words, words * factors)
    assert (words * found).tobytes() == (words * factors).tobytes()
    other = words * factors
    other[3, 9] = np.nextafter(other[3, 9], np.float32(np.inf))
    assert column_factors(words, other) is None


def with_noise(arrays):
    return arrays | {DECODER: arrays[DECODER] + np.float32(0.1) * (arrays[WORDS] > 0)}


@pytest.mark.parametrize(
    ("change", "fields", "printed"),
    [
        (with_noise, {}, rf"{DECODER}: got other values, expected those of {WORDS}, or these"),
        (
            lambda arrays: {n: a for n, a in arrays.items() if n != DECODER},
            {},
            rf"1 of \d+ arrays .*\n  missing +{DECODER} ",
        ),
        (dict, {"is_decoder": True}, "is_decoder of config.json: got True, expected False"),
        (dict, {"position_bucket_size": 5}, "wrong shape  embedding.relative_embedding"),
    ],
)
def test_refused_folders(change, fields, printed, tied, save_gpt_bert, tmp_path):
    arrays, config = tied
    source = save_gpt_bert(tmp_path / "source", change(arrays), config | fields)
    with pytest.raises(UserError, match=printed):
        importing.read(source)


def test_a_field_without_a_default_is_required(tied, save_gpt_bert, tmp_path):
    """Copies of the code have different ones."""
    arrays, config = tied
    config = {word: value for word, value in config.items() if word != "layer_norm_eps"}
    with pytest.raises(UserError, match=r"config.json lacks layer_norm_eps: restore it"):
        importing.read(save_gpt_bert(tmp_path / "source", arrays, config))


def test_missing_weights_of_other_code(tmp_path):
    """An unknown type is not the first thing to fix if the arrays may be known."""
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": AUTO_MAP}))
    with pytest.raises(UserError, match=r"has no model.safetensors: expected a folder"):
        importing.read(tmp_path)


@pytest.mark.parametrize(
    ("recipe", "model", "printed"),
    [
        (",mlm", {"head_norm_parameters": True}, "head_norm_parameters: got True, expected False"),
        (",mlm", {"layer_weights": True}, "layer_weights: got True, expected False, as in the re"),
        ("", {"layer_weights": False}, "config.model.layer_weights: got False, expected True"),
        ("", {"interleaved_positions": True}, "interleaved_positions: got True, expected False"),
        ("", {"hidden_act": "relu"}, "config.model.hidden_act: got 'relu', expected 'gelu'"),
    ],
)
def test_runs_that_the_released_code_does_not_compute(
    recipe, model, printed, config_of, tokenizer, write_random_run, export_run, tmp_path
):
    write_random_run(tmp_path / "run", config_of(recipe, **model), tokenizer)
    with pytest.raises(UserError, match=printed):
        export_run(tmp_path / "run", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_commands(tied, save_gpt_bert, run_bertjax, tmp_path):
    arrays, config = tied
    source = save_gpt_bert(tmp_path / "source", arrays, config)
    done = run_bertjax("import", "--model", source, "--workdir", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gpt_bert with" in done.stdout
    assert "heads: mntp" in done.stdout
    done = run_bertjax("export", "--model", tmp_path / "run", "--output", tmp_path / "back")
    assert "LtgbertForMaskedLM is not in transformers: add the code of a released" in done.stderr
    card = (tmp_path / "back" / "README.md").read_text()
    assert 'AutoModelForMaskedLM.from_pretrained("this folder", trust_remote_code=True)' in card
    assert "pipeline_tag" not in card
    done = run_bertjax(
        *("export", "--model", tmp_path / "run", "--output", tmp_path / "st"),
        *("--format", "sentence-transformers"),
    )
    assert done.returncode == 2
    assert "--format: got sentence-transformers for a gpt_bert, expected transf" in done.stderr
