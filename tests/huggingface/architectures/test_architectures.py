"""Configs of every architecture in both directions; unsupported models are refused."""

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.huggingface import architecture as architectures
from bertjax.huggingface import parts


def test_every_architecture_keeps_the_contract():
    for name in architectures.names():
        architecture = architectures.load(name)
        parts = architecture.parts()
        assert architectures.ENCODER in parts
        for heads in architecture.CLASSES:
            assert set(heads) < parts.keys()
            assert list(heads) == [part for part in parts if part in heads]
            pairs = architectures.maps_of(architecture, [architectures.ENCODER, *heads])
            paths = [path for pair in pairs for path in pair.paths]
            assert len(set(paths)) == len(paths)
        encoder = [pair.hf for pair in parts[architectures.ENCODER]]
        assert all(name.startswith(architectures.prefix(architecture)) for name in encoder)
        for part, pairs in parts.items():
            assert all(path.startswith(f"{part}/") for pair in pairs for path in pair.paths)
        every = {pair.hf for pairs in parts.values() for pair in pairs}
        assert set(architectures.attribute(architecture, "TIED_ARRAYS").values()) <= every
        assert not set(architectures.attribute(architecture, "TIED_ARRAYS")) & every


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


GPT = {
    "vocab_size": 30,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 16,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.2,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
}
CONFIGS = {
    "bert": FIELDS,
    "roberta": FIELDS | {"type_vocab_size": 1, "pad_token_id": 1},
    "distilbert": {
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
    "albert": FIELDS | {"embedding_size": 6, "num_hidden_groups": 1, "inner_group_num": 1},
    "electra": FIELDS | {"embedding_size": 6},
    "xlnet": {
        "vocab_size": 30,
        "d_model": 8,
        "n_layer": 1,
        "n_head": 2,
        "d_inner": 12,
        "ff_activation": "relu",
        "dropout": 0.2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "mem_len": 7,
        "clamp_len": -1,
    },
    "gpt2": GPT | {"activation_function": "gelu_new", "n_inner": 12},
    "openai-gpt": GPT | {"afn": "gelu"},
    "deberta-v2": FIELDS
    | {"relative_attention": True, "max_relative_positions": -1, "position_buckets": 8}
    | {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    | {"embedding_size": 6, "position_biased_input": False, "legacy": True},
    "gpt_bert": {
        "vocab_size": 30,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.2,
        "max_position_embeddings": 16,
        "position_bucket_size": 4,
        "layer_norm_eps": 1e-5,
    },
}
CONFIGS["ltg_bert"] = CONFIGS["gpt_bert"] | {"interleaved_positions": True}
MODEL_NAMES = {"albert": "albert", "xlnet": "xlnet", "gpt2": "gpt2", "openai-gpt": "gpt1"}
MODEL_NAMES |= {"deberta-v2": "deberta", "gpt_bert": "gpt_bert", "ltg_bert": "gpt_bert"}
"""The model of bertjax by Hugging Face model type, where it is not `bert`."""


@pytest.mark.parametrize(("model_type", "hf_config"), CONFIGS.items(), ids=CONFIGS)
def test_round_trip_of_a_config(model_type, hf_config):
    architecture = architectures.load(model_type)
    fields = architecture.fields(hf_config, ("encoder",))
    assert fields["name"] == MODEL_NAMES.get(model_type, "bert")
    assert (fields["hidden_size"], fields["attention_probs_dropout_prob"]) == (8, 0.2)
    assert fields.get("num_pooler_layers", 0) == 0
    assert architecture.config(fields, ("mlm", "glue")) == hf_config
    assert architectures.model_type_of({"model": fields}) == model_type


def test_exactly_one_architecture_describes_a_run():
    for model_type, hf_config in CONFIGS.items():
        model = architectures.load(model_type).fields(hf_config, ("encoder",))
        known = architectures.names()
        describing = [
            name for name in known if architectures.load(name).describes({"model": model})
        ]
        assert describing == [model_type]


@pytest.mark.parametrize(
    ("run", "model_type"),
    [
        ({"objectives": {"generator": {}, "rtd": {}}}, "electra"),
        ({"objectives": {"mlm": {}}}, "bert"),
        ({"task": {"pooler_act": "gelu"}}, "electra"),
        ({"task": {"pooler_act": "tanh"}}, "bert"),
    ],
)
def test_an_electra_of_berts_width_is_recognised_by_its_heads(run, model_type):
    model = FIELDS | {"name": "bert", "num_pooler_layers": 0}
    assert architectures.model_type_of(run | {"model": model}) == model_type


@pytest.mark.parametrize(
    ("model_type", "transform", "expected"),
    [("bert", True, "False"), ("modernbert", False, "True")],
)
def test_a_head_over_tokens_has_the_transform_of_its_architecture(model_type, transform, expected):
    run = {"task": {"name": "ner", "labels": ("O", "B"), "token_transform": transform}}
    params = {"encoder/norm/scale": np.ones(8), "ner/classifier/dense/kernel": np.ones((8, 2))}
    with pytest.raises(UserError, match=f"fine-tune with --config.task.token_transform={expected}"):
        parts.to_hf(model_type, run, params, None, "the run")


@pytest.mark.parametrize(
    "model",
    [{"embedding_size": 6, "position_offset": 2}, {"embedding_size": 6} | {"type_vocab_size": 0}],
)
def test_hyperparameters_of_no_architecture_are_refused(model):
    with pytest.raises(UserError, match="none of the exported architectures"):
        architectures.model_type_of({"model": FIELDS | {"name": "bert"} | model})


@pytest.mark.parametrize(
    ("model_type", "change", "parts", "printed"),
    [
        ("albert", {"num_hidden_groups": 3}, (), "num_hidden_groups=3 .* expected 1 to num_h.*=1 "),
        ("albert", {"inner_group_num": 0}, (), "inner_group_num=0, expected .* 1 or more blocks"),
        (
            "albert",
            {"embedding_size": 8},
            (),
            "embedding_size of config.json: got 8, the same as hidden_size",
        ),
        ("electra", {"is_decoder": True}, (), "is_decoder .*: got True, expected False"),
        (
            "gpt2",
            {"scale_attn_weights": False},
            (),
            "scale_attn_weights of config.json: got False, expected True",
        ),
        ("xlnet", {"attn_type": "uni"}, (), "attn_type of config.json: got 'uni', expected 'bi'"),
        ("xlnet", {"same_length": True}, (), "same_length of config.json: got True"),
        ("xlnet", {"d_head": 5}, (), "d_head of config.json: got 5, expected 4"),
        (
            "xlnet",
            {"summary_type": "first"},
            ("glue",),
            "summary_type .*: got 'first', expected 'last'",
        ),
        ("roberta", {"pad_token_id": None}, (), "pad_token_id of config.json: got null"),
    ],
)
def test_unsupported_fields_of_related_architectures_are_refused(
    model_type, change, parts, printed
):
    architecture = architectures.load(model_type)
    with pytest.raises(UserError, match=printed):
        architecture.fields(CONFIGS[model_type] | change, parts)


def test_defaults_of_an_albert_config():
    hf_config = {word: value for word, value in CONFIGS["albert"].items() if word != "hidden_act"}
    fields = architectures.load("albert").fields(hf_config, ())
    assert (fields["hidden_act"], fields["sharing"]) == ("gelu_new", "all")


def test_memory_and_distances_without_a_limit():
    """Released as null and -1, which are 0 in bertjax."""
    architecture = architectures.load("xlnet")
    fields = architecture.fields(CONFIGS["xlnet"] | {"mem_len": None, "clamp_len": -1}, ())
    assert (fields["mem_len"], fields["clamp_len"]) == (0, 0)
    assert architecture.fields(CONFIGS["xlnet"] | {"clamp_len": 9}, ())["clamp_len"] == 9


def test_a_local_theta_of_null_is_the_global_one():
    thetas = {"global_rope_theta": 5e4, "local_rope_theta": None}
    fields = architectures.load("modernbert").fields(FIELDS | thetas, ())
    assert (fields["global_rope_theta"], fields["local_rope_theta"]) == (5e4, 5e4)


@pytest.mark.parametrize(
    ("change", "printed"),
    [
        ({"add_cross_attention": True}, "add_cross_attention of config.json: got True"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder of config.json: got True"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type of config.json: got 'relative_key'",
        ),
        (
            {"is_decoder": True},
            "is_decoder of config.json: got True, expected False, the only value",
        ),
        ({"tie_word_embeddings": False}, "tie_word_embeddings of config.json: got False"),
        ({"hidden_act": "quick_gelu"}, "no activation 'quick_gelu': known: gelu"),
    ],
)
def test_unsupported_fields_are_refused(change, printed):
    with pytest.raises(UserError, match=printed):
        architectures.load("bert").fields(FIELDS | change, ("mlm",))


def test_embeddings_are_tied_only_with_a_language_model_head():
    bert = architectures.load("bert")
    untied = bert.fields(FIELDS | {"tie_word_embeddings": False}, ("encoder",))
    assert untied == bert.fields(FIELDS, ("encoder",))


def test_a_missing_field_is_refused():
    hf_config = {word: value for word, value in FIELDS.items() if word != "hidden_size"}
    with pytest.raises(UserError, match=r"config.json lacks hidden_size"):
        architectures.load("bert").fields(hf_config, ())


def test_defaults_of_an_old_config():
    """The small BERTs of Turc et al. 2019 were released without an epsilon."""
    hf_config = {word: value for word, value in FIELDS.items() if word != "layer_norm_eps"}
    fields = architectures.load("bert").fields(hf_config, ())
    assert fields["layer_norm_eps"] == 1e-12


@pytest.mark.parametrize(
    ("model_type", "change", "printed"),
    [
        (
            "distilbert",
            {"type_vocab_size": 0, "layer_norm_eps": 1e-5},
            "layer_norm_eps: got 1e-05, expected 1e-12",
        ),
        (
            "electra",
            {"hidden_act": "gelu", "num_pooler_layers": 1},
            "num_pooler_layers: got 1, expected 0",
        ),
    ],
)
def test_fields_without_a_counterpart_in_transformers_are_refused(model_type, change, printed):
    architecture = architectures.load(model_type)
    with pytest.raises(UserError, match=printed):
        architecture.config(FIELDS | change, ("mlm", "glue"))


def test_a_model_without_an_architecture_is_refused():
    with pytest.raises(UserError, match=r"got name='vit' .* none of the exported architectures"):
        architectures.model_type_of({"model": FIELDS | {"name": "vit"}})
