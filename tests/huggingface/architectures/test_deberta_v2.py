"""DeBERTa in Hugging Face folders: towers of a run, released files, configs of any age."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build
from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import architecture as architectures
from bertjax.huggingface import exporting, importing
from bertjax.huggingface.model import HFModel, read_arrays, write_arrays
from bertjax.inference import fill_mask
from bertjax.runs import initialization
from bertjax.tokenizers import tokenizer
from bertjax.train.checkpoint import trees
from bertjax.train.checkpoint.manager import Checkpoints

TEXT = ["a line of text that a tokenizer is trained on", "and another one"] * 20
SHRUNK = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
    "position_buckets": 6,
    "precision": "float32",
}
HEAD = ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias", "bias")
WORDS = "deberta.embeddings.word_embeddings.weight"
POSITIONS = "deberta.embeddings.position_embeddings.weight"


@pytest.fixture(scope="module")
def vocabulary():
    return tokenizer.train(TEXT, kind="unigram", vocab_size=60)


@pytest.fixture
def run(vocabulary, tmp_path):
    """`run(recipe)`: a run with random weights, and these."""

    def write(recipe):
        config = configs.load_config(f"configs/deberta.py:{recipe}", [])
        with config.unlocked():
            config.model.update(SHRUNK, vocab_size=vocabulary.vocab_size)
        shapes = importing.parameter_shapes(importing.pretrainer(config, vocabulary))
        random = np.random.default_rng(0)
        params = {
            name: random.normal(name.endswith("scale"), 0.3, size=shape).astype(np.float32)
            for name, shape in sorted(shapes.items())
        }
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "config.json").write_text(configs.to_json(config))
        vocabulary.save(str(folder / "tokenizer"))
        with Checkpoints(folder) as checkpoints:
            checkpoints.save({"params": jax.tree.map(jnp.asarray, trees.nest(params))}, step=7)
        return folder, config, params

    return write


def export(source, target, **options):
    return exporting.write(exporting.find(str(source)), target, **options)


def assert_round_trip(first, folder):
    """Import, then export: the same files."""
    importing.write(importing.read(first), folder / "again")
    export(folder / "again", folder / "back")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (folder / "back" / name).read_bytes() == (first / name).read_bytes(), name


def encoded(model, params):
    ids = np.random.default_rng(1).integers(5, model["vocab_size"], (2, 9))
    batch = {"input_ids": jnp.asarray(ids), "attention_mask": jnp.ones((2, 9), bool)}
    variables = {"params": jax.tree.map(jnp.asarray, trees.nest(params)["encoder"])}
    encoder = build.encoder({**model, "precision": "float32"})
    return encoder.apply(variables, batch, train=False)


def test_the_discriminator_of_a_run_has_the_sum_of_its_embeddings(run, tmp_path):
    folder, config, params = run("tiny")
    made = export(folder, tmp_path / "hf")
    assert (made.class_name, set(made.left_out)) == ("DebertaV2Model", {"generator", "rtd"})
    tables = [params[f"encoder/shared_embeddings/{n}/embedding"] for n in ("generator", "delta")]
    arrays = read_arrays(tmp_path / "hf")
    np.testing.assert_array_equal(arrays[WORDS.partition(".")[2]], sum(tables))
    imported = importing.read(tmp_path / "hf")
    assert "embedding_sharing" not in imported.config.model
    np.testing.assert_allclose(
        encoded(imported.config.model, imported.params).sequence,
        encoded(config.model, params).sequence,
        atol=1e-5,
    )
    assert_round_trip(tmp_path / "hf", tmp_path)


def test_the_generator_of_a_run(run, tmp_path):
    """Transformers has its layers and its head; its positions are those of the mask decoder."""
    folder, _, params = run("tiny")
    made = export(folder, tmp_path / "hf", generator=True)
    assert (made.class_name, made.left_out) == ("DebertaV2ForMaskedLM", {})
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    expected = {"num_hidden_layers": 1, "legacy": False, "mask_decoder_layers": 2}
    assert expected.items() <= written.items()
    arrays = read_arrays(tmp_path / "hf")
    for name, path in (
        (WORDS, "encoder/shared_embeddings/generator/embedding"),
        (POSITIONS, "generator/encoder/position_embeddings/embedding"),
        ("lm_predictions.lm_head.bias", "generator/mlm/bias"),
    ):
        np.testing.assert_array_equal(arrays[name], params[path], err_msg=name)
    assert_round_trip(tmp_path / "hf", tmp_path)


def test_a_masked_lm_with_a_mask_decoder(run, tmp_path):
    folder, config, params = run("tiny,mlm")
    made = export(folder, tmp_path / "hf")
    assert (made.class_name, made.left_out) == ("DebertaV2ForMaskedLM", {})
    assert "pipeline_tag: fill-mask" in (tmp_path / "hf" / "README.md").read_text()
    imported = importing.read(tmp_path / "hf")
    found, expected = encoded(imported.config.model, imported.params), encoded(config.model, params)
    np.testing.assert_array_equal(found.queries, expected.queries)
    assert_round_trip(tmp_path / "hf", tmp_path)
    # Masks are filled by the mask decoder, as in training.
    ((candidates,),) = fill_mask.load(str(folder), 3, "float32").fill(["a [MASK] of text"])
    ((again,),) = fill_mask.load(str(tmp_path / "again"), 3, "float32").fill(["a [MASK] of text"])
    assert candidates == again
    assert len(candidates) == 3


def test_a_released_file_has_positions_and_heads_that_transformers_ignores(run, tmp_path):
    folder, *_ = run("tiny,mlm")
    export(folder, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    del config["mask_decoder_layers"], config["legacy"]
    config |= {"pos_att_type": "p2c|c2p", "norm_rel_ebd": "layer_norm", "pooler_hidden_size": 12}
    arrays = read_arrays(tmp_path / "hf")
    head = {f"mask_predictions.dense.{name}": np.zeros(12, np.float32) for name in ("bias",)}
    released = HFModel.of({**config}, arrays | head)
    assert {"encoder", "enhanced_mlm"} <= set(released.parts)
    fields = released.fields
    assert (fields["mask_decoder_layers"], fields["pos_att_type"]) == (2, ("p2c", "c2p"))
    read = importing.run_config(released, "released")
    shapes = importing.parameter_shapes(importing.pretrainer(read))
    assert importing.parameters(released, read).keys() == shapes.keys()
    without = {name: array for name, array in arrays.items() if name != POSITIONS}
    assert HFModel.of(config, without).fields["mask_decoder_layers"] == 0


def test_released_embeddings_have_more_rows_than_the_tokenizer_has_tokens(
    run, tmp_path, monkeypatch
):
    folder, *_ = run("tiny,mlm")
    export(folder, tmp_path / "hf")
    path, head = tmp_path / "hf" / "config.json", "lm_predictions.lm_head.bias"
    config, arrays = json.loads(path.read_text()), read_arrays(tmp_path / "hf")
    grown = {
        name: np.pad(arrays[name], [(0, 3), *[(0, 0)] * (arrays[name].ndim - 1)])
        for name in (WORDS, head)
    }
    path.write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 3}))
    write_arrays(tmp_path / "hf", arrays | grown)
    made = importing.read(tmp_path / "hf")
    assert made.config.model.vocab_size == config["vocab_size"] + 3
    # Fine-tuning and continued pretraining with the tokenizer of the import.
    build.check_vocabulary(made.config, made.tokenizer, build.extra_ids(made.config))
    monkeypatch.setenv("BERTJAX_CACHE", str(tmp_path / "cache"))
    fresh = configs.load_config("configs/deberta.py:tiny,mlm", [])
    continued = initialization.with_model(fresh, str(tmp_path / "hf"))
    importing.write(dataclasses.replace(made, config=continued), tmp_path / "continued")
    again = initialization.with_model(fresh, str(tmp_path / "continued"))
    for config_of_run in (continued, again):
        build.check_vocabulary(config_of_run, made.tokenizer, build.extra_ids(config_of_run))
        assert config_of_run.model.vocab_size == config["vocab_size"] + 3
    path.write_text(json.dumps(config | {"vocab_size": config["vocab_size"] - 3}))
    with pytest.raises(UserError, match=r"vocab_size of .*: got \d+, expected \d+, that of its"):
        importing.read(tmp_path / "hf")


CONFIG = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "relative_attention": True,
    "pos_att_type": "p2c | c2p",
}


@pytest.mark.parametrize(
    ("change", "parts", "printed"),
    [
        ({"conv_kernel_size": 3}, (), "conv_kernel_size of config.json: got 3, expected 0"),
        ({"relative_attention": False}, (), "relative_attention of config.json: got False"),
        ({"attention_head_size": 8}, (), "attention_head_size of config.json: got 8, expected 4"),
        ({"legacy": False}, ("mlm",), "legacy of config.json: got False, expected True"),
        ({"legacy": True}, ("enhanced_mlm",), "legacy of config.json: got True, expected False"),
        ({"pooler_dropout": 0.1}, ("glue",), "pooler_dropout of config.json: got 0.1, expected 0"),
        ({"pooler_hidden_act": "tanh"}, ("glue",), "pooler_hidden_act of config.json: got 'tanh'"),
        ({"pooler_hidden_size": 9}, (), "pooler_hidden_size of config.json: got 9, expected 8"),
    ],
)
def test_unsupported_fields_are_refused(change, parts, printed):
    architecture = architectures.load("deberta-v2")
    with pytest.raises(UserError, match=printed):
        architecture.fields(CONFIG | change, ("encoder", *parts))


def test_defaults_of_a_config():
    """An absent field of transformers has its default there, not that of DeBERTaV3."""
    architecture = architectures.load("deberta-v2")
    fields = architecture.fields(CONFIG, ("encoder",))
    expected = {
        "pos_att_type": ("p2c", "c2p"),
        "norm_rel_ebd": "none",
        "position_buckets": -1,
        "share_att_key": False,
        "position_biased_input": True,
        "type_vocab_size": 0,
        "mask_decoder_layers": 0,
    }
    assert expected.items() <= fields.items()
    absent = {name: value for name, value in CONFIG.items() if name != "relative_attention"}
    with pytest.raises(UserError, match=r"relative_attention of config.json: got False"):
        architecture.fields(absent, ("encoder",))


def test_a_narrow_embedding_has_no_new_head():
    architecture = architectures.load("deberta-v2")
    model = architecture.fields(CONFIG | {"embedding_size": 6}, ("encoder",))
    with pytest.raises(UserError, match="embedding_size: got 6, expected 8, the only value with"):
        architecture.config(model, ("enhanced_mlm",))
