"""DistilBERT (`DistilBertModel` and its heads): BERT without segment vectors and pooler."""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.huggingface import config_words
from bertjax.huggingface.architectures import bert
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import TOKEN_HEADS, ArrayMap, dense, norm, table

PREFIX = "distilbert"

CLASSES = {
    (): "DistilBertModel",
    ("mlm",): "DistilBertForMaskedLM",
    ("glue",): "DistilBertForSequenceClassification",
    ("multiple_choice",): "DistilBertForMultipleChoice",
    ("squad",): "DistilBertForQuestionAnswering",
    ("ner",): "DistilBertForTokenClassification",
}

CLASSIFIER_DROPOUT = dict.fromkeys(("glue", "multiple_choice"), "seq_classif_dropout")

CLASSIFIER_ACT = "relu"

TIED_ARRAYS = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}

WORDS = {
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "max_position_embeddings": "max_position_embeddings",
    "initializer_range": "initializer_range",
}
"""The bertjax field of each HF field."""

READ = ("seq_classif_dropout",)

FIXED = config_words.FIXED

FIXED_BY_HEAD = {"mlm": {"tie_word_embeddings": True}}

IRRELEVANT = config_words.IRRELEVANT | {
    "sinusoidal_pos_embds": "initialisation of the position table, which is in the file",
    "qa_dropout": "dropout before the head for question answering; bertjax has none there",
}

_EPSILON = 1e-12
"""Epsilon of every LayerNorm: a constant in transformers, not a field of the config."""


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays; heads that read the pooled output have their own pooler."""
    embeddings, layer = f"{PREFIX}.embeddings", f"{PREFIX}.transformer.layer.{{layer}}"
    block = "encoder/layers/block"
    return {
        "encoder": [
            *table("encoder/word_embeddings", f"{embeddings}.word_embeddings"),
            *table("encoder/position_embeddings", f"{embeddings}.position_embeddings"),
            *norm("encoder/embeddings/norm", f"{embeddings}.LayerNorm"),
            *dense(f"{block}/attention/query", f"{layer}.attention.q_lin"),
            *dense(f"{block}/attention/key", f"{layer}.attention.k_lin"),
            *dense(f"{block}/attention/value", f"{layer}.attention.v_lin"),
            *dense(f"{block}/attention/output", f"{layer}.attention.out_lin", inputs=2),
            *norm(f"{block}/attention_norm", f"{layer}.sa_layer_norm"),
            *dense(f"{block}/feed_forward/intermediate", f"{layer}.ffn.lin1"),
            *dense(f"{block}/feed_forward/output", f"{layer}.ffn.lin2"),
            *norm(f"{block}/feed_forward_norm", f"{layer}.output_layer_norm"),
        ],
        "mlm": [
            *dense("mlm/transform/dense", "vocab_transform"),
            *norm("mlm/transform/norm", "vocab_layer_norm"),
            ArrayMap("mlm/bias", "vocab_projector.bias"),
        ],
        "glue": [
            *dense("glue/pooler/dense", "pre_classifier"),
            *dense("glue/classifier/dense", "classifier"),
        ],
        "multiple_choice": [
            *dense("multiple_choice/pooler/dense", "pre_classifier"),
            *dense("multiple_choice/classifier/dense", "classifier"),
        ],
        **TOKEN_HEADS,
    }


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    return {
        "name": "bert",
        **rename(hf_config, WORDS),
        "type_vocab_size": 0,
        "num_pooler_layers": 0,
        "layer_norm_eps": _EPSILON,
    }


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model.

    Raises:
      UserError: a field has a value that transformers does not support.
    """
    if model["layer_norm_eps"] != _EPSILON:
        raise UserError(
            f"config.model.layer_norm_eps: got {model['layer_norm_eps']!r}, expected {_EPSILON}, "
            "the only value of a DistilBERT of transformers; train with that value"
        )
    return {word: model[field] for word, field in WORDS.items()}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is BERT without segment vectors."""
    return bert.variant(run) == "distilbert"
