"""Names of files of any age become the names that count; what is not ours is refused."""

import json

import numpy as np
import pytest

from bertjax import catalog
from bertjax.compat import huggingface
from bertjax.compat.huggingface import Released
from bertjax.errors import UserError

BERT = {"model_type": "bert"}


def test_every_architecture_keeps_the_contract():
    for name in catalog.names(huggingface.ARCHITECTURES):
        architecture = catalog.load(huggingface.ARCHITECTURES, name)
        parts = architecture.parts()
        assert huggingface.ENCODER in parts
        for heads in architecture.CLASSES:
            assert set(heads) < parts.keys()
            assert list(heads) == [part for part in parts if part in heads]
            pairs = huggingface.pairs_of(architecture, [huggingface.ENCODER, *heads])
            assert len({pair.ours for pair in pairs}) == len(pairs)
            assert len({pair.theirs for pair in pairs}) == len(pairs)
        encoder = [pair.theirs for pair in parts[huggingface.ENCODER]]
        assert all(name.startswith(f"{architecture.PREFIX}.") for name in encoder)
        every = {pair.theirs for pairs in parts.values() for pair in pairs}
        assert set(architecture.SAME.values()) <= every
        assert not set(architecture.SAME) & every


def test_a_bare_encoder_gets_its_prefix():
    released = Released.of(BERT, {"pooler.dense.weight": np.zeros((2, 2), np.float32)})
    assert list(released.arrays) == ["bert.pooler.dense.weight"]
    assert released.parts == ["encoder", "encoder/pooler"]


def test_old_names_and_constants():
    arrays = {
        "bert.embeddings.LayerNorm.gamma": np.ones(3, np.float32),
        "bert.embeddings.LayerNorm.beta": np.zeros(3, np.float32),
        "bert.embeddings.position_ids": np.arange(4),
    }
    released = Released.of(BERT, arrays)
    assert sorted(released.arrays) == [
        "bert.embeddings.LayerNorm.bias",
        "bert.embeddings.LayerNorm.weight",
    ]
    assert released.dtype == "float32"


def test_arrays_that_are_there_twice():
    words = np.arange(6, dtype=np.float32).reshape(3, 2)
    arrays = {
        "bert.embeddings.word_embeddings.weight": words,
        "cls.predictions.decoder.weight": words.copy(),
        "cls.predictions.decoder.bias": np.zeros(3, np.float32),
    }
    released = Released.of(BERT, arrays)
    assert sorted(released.arrays) == [
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.bias",
    ]
    arrays["cls.predictions.decoder.weight"][0, 0] = 9
    with pytest.raises(UserError, match=r"decoder.weight differs from bert.embeddings.word_embed"):
        Released.of(BERT, arrays)


def test_one_type_is_remembered_and_several_are_float32():
    half = {"bert.a": np.zeros(1, np.float16), "bert.b": np.zeros(1, np.float16)}
    assert Released.of(BERT, half).dtype == "float16"
    assert Released.of(BERT, half | {"bert.b": np.zeros(1, np.float32)}).dtype == "float32"


@pytest.mark.parametrize("config", [{"model_type": "gpt2"}, {}])
def test_other_architectures_are_refused(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"model_type=\S+: bertjax exchanges .*bert, .*roberta"):
        huggingface.read(tmp_path)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(UserError, match=r"no folder .*bert-base: .*hf download NAME --local-dir"):
        huggingface.read(tmp_path / "bert-base")
    with pytest.raises(UserError, match=r"has no config.json"):
        huggingface.read(tmp_path)


FIELDS = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}


@pytest.mark.parametrize(
    ("model_type", "theirs"),
    [
        ("bert", FIELDS),
        ("roberta", FIELDS | {"type_vocab_size": 1, "pad_token_id": 1}),
        (
            "distilbert",
            {
                "vocab_size": 30,
                "dim": 8,
                "n_layers": 1,
                "n_heads": 2,
                "hidden_dim": 12,
                "activation": "relu",
                "dropout": 0.1,
                "attention_dropout": 0.2,
                "max_position_embeddings": 16,
                "initializer_range": 0.02,
            },
        ),
    ],
)
def test_a_config_goes_there_and_back(model_type, theirs):
    architecture = catalog.load(huggingface.ARCHITECTURES, model_type)
    ours = architecture.fields(theirs, ("encoder",))
    assert ours["name"] == "bert"
    assert ours["num_pooler_layers"] == 0
    assert (ours["hidden_size"], ours["attention_probs_dropout_prob"]) == (8, 0.2)
    assert architecture.config(ours, ("mlm", "glue")) == theirs
    assert huggingface.model_type_of({"model": ours}) == model_type


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"is_decoder": True}, "is_decoder=True: bertjax has this model with is_decoder=False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"hidden_act": "gelu_fast"}, "no activation 'gelu_fast': did you mean"),
    ],
)
def test_a_config_that_asks_for_something_else(change, told):
    with pytest.raises(UserError, match=told):
        catalog.load(huggingface.ARCHITECTURES, "bert").fields(FIELDS | change, ())


def test_a_config_that_lacks_a_field():
    theirs = {word: value for word, value in FIELDS.items() if word != "hidden_size"}
    with pytest.raises(UserError, match=r"config.json lacks hidden_size"):
        catalog.load(huggingface.ARCHITECTURES, "bert").fields(theirs, ())


def test_what_an_old_config_does_not_say():
    """As the small BERTs of Turc et al. 2019 were released, without an epsilon."""
    theirs = {word: value for word, value in FIELDS.items() if word != "layer_norm_eps"}
    ours = catalog.load(huggingface.ARCHITECTURES, "bert").fields(theirs, ())
    assert ours["layer_norm_eps"] == 1e-12


@pytest.mark.parametrize(
    ("model_type", "change", "told"),
    [
        ("roberta", {"hidden_act": "relu", "position_offset": 2}, "hidden_act='relu': RoBERTa's"),
        ("distilbert", {"type_vocab_size": 0, "layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05: a D"),
    ],
)
def test_a_model_that_theirs_cannot_be(model_type, change, told):
    architecture = catalog.load(huggingface.ARCHITECTURES, model_type)
    with pytest.raises(UserError, match=told):
        architecture.config(FIELDS | change, ("mlm", "glue"))


def test_a_model_that_none_of_theirs_is():
    with pytest.raises(UserError, match=r"no architecture of transformers .* model 'vit'"):
        huggingface.model_type_of({"model": FIELDS | {"name": "vit"}})
