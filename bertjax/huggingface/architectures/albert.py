"""ALBERT (`AlbertModel` and its heads): factorised embeddings, layers with shared parameters.

In transformers the layers are divided into groups, each with one copy of all parameters: one group
is sharing "all" of bertjax, a group per layer is "none", and other numbers are `num_hidden_groups`
and `inner_group_num`. Sharing of attention or feed-forward nets alone has no equivalent.

The paths of the parameters decide which of the parts "shared", "block" and "group" a model has.
"""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.huggingface import config_words
from bertjax.huggingface.architectures import bert
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import INNER, LAYER, TOKEN_HEADS, ArrayMap, dense, norm, table

PREFIX = "albert"

CLASSES = {
    (): "AlbertModel",
    ("mlm",): "AlbertForMaskedLM",
    ("mlm", "sentence_pair"): "AlbertForPreTraining",
    ("glue",): "AlbertForSequenceClassification",
    ("multiple_choice",): "AlbertForMultipleChoice",
    ("squad",): "AlbertForQuestionAnswering",
    ("ner",): "AlbertForTokenClassification",
}

CLASSIFIER_DROPOUT = dict.fromkeys(("glue", "multiple_choice", "ner"), "classifier_dropout_prob")

CLASSIFIER_ACT = "tanh"

TIED_ARRAYS = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}

WORDS = bert.WORDS | {"embedding_size": "embedding_size"}

READ = ("num_hidden_groups", "inner_group_num", "classifier_dropout_prob")

FIXED = config_words.FIXED | {"position_embedding_type": "absolute"}

FIXED_BY_HEAD = {"mlm": {"tie_word_embeddings": True}}

IRRELEVANT = config_words.IRRELEVANT

_ASSUMED = {
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""Defaults of ALBERT's config in transformers that differ from BERT's."""


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays: of layers once, or of each layer or group."""
    embeddings = f"{PREFIX}.embeddings"
    return {
        "encoder": [
            *table("encoder/word_embeddings", f"{embeddings}.word_embeddings"),
            *table("encoder/position_embeddings", f"{embeddings}.position_embeddings"),
            *table("encoder/segment_embeddings", f"{embeddings}.token_type_embeddings"),
            *norm("encoder/embeddings/norm", f"{embeddings}.LayerNorm"),
            *dense("encoder/embedding_projection", f"{PREFIX}.encoder.embedding_hidden_mapping_in"),
        ],
        "encoder/layers/shared": _layer("encoder/layers/shared", "0", "0"),
        "encoder/layers/block": _layer("encoder/layers/block", LAYER, "0"),
        "encoder/layers/group": _layer("encoder/layers/group", LAYER, INNER),
        "encoder/pooler": dense("encoder/pooler/dense", f"{PREFIX}.pooler"),
        "mlm": [
            *dense("mlm/transform/dense", "predictions.dense"),
            *norm("mlm/transform/norm", "predictions.LayerNorm"),
            ArrayMap("mlm/bias", "predictions.bias"),
        ],
        "sentence_pair": dense("sentence_pair/classifier/dense", "sop_classifier.classifier"),
        "glue": dense("glue/classifier/dense", "classifier"),
        "multiple_choice": dense("multiple_choice/classifier/dense", "classifier"),
        **TOKEN_HEADS,
    }


def _layer(path: str, group: str, inner: str) -> list[ArrayMap]:
    layer = f"{PREFIX}.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
    return [
        *dense(f"{path}/attention/query", f"{layer}.attention.query"),
        *dense(f"{path}/attention/key", f"{layer}.attention.key"),
        *dense(f"{path}/attention/value", f"{layer}.attention.value"),
        *dense(f"{path}/attention/output", f"{layer}.attention.dense", inputs=2),
        *norm(f"{path}/attention_norm", f"{layer}.attention.LayerNorm"),
        *dense(f"{path}/feed_forward/intermediate", f"{layer}.ffn"),
        *dense(f"{path}/feed_forward/output", f"{layer}.ffn_output"),
        *norm(f"{path}/feed_forward_norm", f"{layer}.full_layer_layer_norm"),
    ]


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    renamed = rename(_ASSUMED | dict(hf_config), WORDS)
    groups, inner = hf_config.get("num_hidden_groups", 1), hf_config.get("inner_group_num", 1)
    layers = renamed["num_hidden_layers"]
    if not 1 <= groups <= layers or inner < 1:
        raise UserError(
            f"config.json: got num_hidden_groups={groups} and inner_group_num={inner}, expected 1 "
            f"to num_hidden_layers={layers} groups of 1 or more blocks; restore it from its source"
        )
    sharing = {"sharing": "all"}
    if inner > 1 or groups not in (1, layers):
        sharing |= {"num_hidden_groups": groups, "inner_group_num": inner}
    elif groups > 1:
        sharing = {"sharing": "none"}
    if renamed["embedding_size"] == renamed["hidden_size"]:
        raise UserError(
            f"embedding_size of config.json: got {renamed['embedding_size']}, the same as "
            "hidden_size, expected another one; transformers has a linear layer between the two, "
            "bertjax does not"
        )
    pooler = {"num_pooler_layers": int("encoder/pooler" in parts)}
    return {"name": "albert", **renamed, **sharing, **pooler}


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model.

    Raises:
      UserError: a field has a value that transformers does not support.
    """
    model = {"num_hidden_groups": 0, "inner_group_num": 0} | dict(model)
    groups = {"all": model["num_hidden_groups"] or 1, "none": model["num_hidden_layers"]}
    if model["sharing"] not in groups:
        raise UserError(
            f"config.model.sharing: got {model['sharing']!r}, expected one of {', '.join(groups)}, "
            "those of an ALBERT of transformers; the run cannot be exported"
        )
    if model["embedding_size"] == model["hidden_size"]:
        raise UserError(
            f"config.model.embedding_size: got {model['embedding_size']}, the same as hidden_size, "
            "expected another one; an ALBERT of transformers has a linear layer between the two, "
            "so that the run cannot be exported"
        )
    renamed = {word: model[field] for word, field in WORDS.items()}
    return renamed | {
        "num_hidden_groups": groups[model["sharing"]],
        "inner_group_num": model["inner_group_num"] or 1,
    }


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is an ALBERT."""
    return run["model"]["name"] == "albert"
