"""ALBERT (`AlbertModel` and its heads): factorised embeddings, layers with shared parameters.

Their layers are divided into groups, each with one copy of all parameters: one group is our sharing
"all", a group for each layer our "none", and other numbers are our `num_hidden_groups` and
`inner_group_num`. What shares attention or feed-forward nets alone is no such model.
"""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.huggingface import config_words
from bertjax.huggingface.config_words import expect, take
from bertjax.huggingface.name_map import INNER, LAYER, ArrayMap, dense, norm, table

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

SAME = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}

WORDS = {
    word: word
    for word in (
        "vocab_size",
        "embedding_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "max_position_embeddings",
        "type_vocab_size",
        "initializer_range",
        "layer_norm_eps",
    )
}
"""Our field for each of theirs."""

READ = ("num_hidden_groups", "inner_group_num", "classifier_dropout_prob")

FIXED = config_words.FIXED | {"position_embedding_type": "absolute"}

FIXED_BY_HEAD = {"mlm": {"tie_word_embeddings": True}}

IRRELEVANT = config_words.IRRELEVANT

_ASSUMED = {
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""What ALBERT has in transformers, unlike its kin, where a config says nothing."""


def parts() -> dict[str, list[ArrayMap]]:
    """Both names of all arrays: layers have them once, or each layer or group its own."""
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
        "squad": dense("squad/classifier/dense", "qa_outputs"),
        "ner": dense("ner/classifier/dense", "classifier"),
    }


def _layer(ours: str, group: str, inner: str) -> list[ArrayMap]:
    layer = f"{PREFIX}.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
    return [
        *dense(f"{ours}/attention/query", f"{layer}.attention.query"),
        *dense(f"{ours}/attention/key", f"{layer}.attention.key"),
        *dense(f"{ours}/attention/value", f"{layer}.attention.value"),
        *dense(f"{ours}/attention/output", f"{layer}.attention.dense", inputs=2),
        *norm(f"{ours}/attention_norm", f"{layer}.attention.LayerNorm"),
        *dense(f"{ours}/feed_forward/intermediate", f"{layer}.ffn"),
        *dense(f"{ours}/feed_forward/output", f"{layer}.ffn_output"),
        *norm(f"{ours}/feed_forward_norm", f"{layer}.full_layer_layer_norm"),
    ]


def fields(theirs: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """Our model of their config.

    Raises:
      UserError: a field is missing, or asks for what our model does not compute.
    """
    expect(theirs, parts, FIXED, FIXED_BY_HEAD)
    taken = take(_ASSUMED | dict(theirs), WORDS)
    groups, inner = theirs.get("num_hidden_groups", 1), theirs.get("inner_group_num", 1)
    layers = taken["num_hidden_layers"]
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
    if taken["embedding_size"] == taken["hidden_size"]:
        raise UserError(
            f"config.json says embedding_size={taken['embedding_size']}, the same as hidden_size: "
            "transformers puts a linear map between the two, bertjax does not"
        )
    pooler = {"num_pooler_layers": int("encoder/pooler" in parts)}
    return {"name": "albert", **taken, **sharing, **pooler}


def config(ours: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """Their config of our model.

    Raises:
      UserError: the model has what theirs cannot have, or lacks what theirs always has.
    """
    ours = {"num_hidden_groups": 0, "inner_group_num": 0} | dict(ours)
    groups = {"all": ours["num_hidden_groups"] or 1, "none": ours["num_hidden_layers"]}
    if ours["sharing"] not in groups:
        raise UserError(
            f"the run has config.model.sharing={ours['sharing']!r}: an ALBERT of transformers "
            "shares all of a layer or nothing; the run stays as it is"
        )
    if ours["embedding_size"] == ours["hidden_size"]:
        raise UserError(
            f"the run has config.model.embedding_size={ours['embedding_size']}, the same as "
            "hidden_size: an ALBERT of transformers has a linear map between the two, this one has "
            "not; the run stays as it is"
        )
    made = {theirs: ours[field] for theirs, field in WORDS.items()}
    return made | {
        "num_hidden_groups": groups[ours["sharing"]],
        "inner_group_num": ours["inner_group_num"] or 1,
    }


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is an ALBERT."""
    return run["model"]["name"] == "albert"
