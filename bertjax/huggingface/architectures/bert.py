"""BERT (`BertModel` and its heads); also SpanBERT, BERT-wwm, K-BERT and TinyBERT."""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.huggingface import config_words
from bertjax.huggingface.architecture import with_model_defaults
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import TOKEN_HEADS, ArrayMap, dense, norm, table

PREFIX = "bert"

CLASSES = {
    (): "BertModel",
    ("mlm",): "BertForMaskedLM",
    ("mlm", "sentence_pair"): "BertForPreTraining",
    ("sentence_pair",): "BertForNextSentencePrediction",
    ("glue",): "BertForSequenceClassification",
    ("multiple_choice",): "BertForMultipleChoice",
    ("squad",): "BertForQuestionAnswering",
    ("ner",): "BertForTokenClassification",
}

CLASSIFIER_DROPOUT = dict.fromkeys(("glue", "multiple_choice", "ner"), "classifier_dropout")

CLASSIFIER_ACT = "tanh"

TIED_ARRAYS = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

WORDS = {
    word: word
    for word in (
        "vocab_size",
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
"""The bertjax field of each HF field."""

READ = ("classifier_dropout",)

FIXED = config_words.FIXED | {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}

FIXED_BY_HEAD = {"mlm": {"tie_word_embeddings": True}}

IRRELEVANT = config_words.IRRELEVANT


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays."""
    return {
        "encoder": encoder(PREFIX),
        "encoder/pooler": dense("encoder/pooler/dense", "bert.pooler.dense"),
        "mlm": [
            *dense("mlm/transform/dense", "cls.predictions.transform.dense"),
            *norm("mlm/transform/norm", "cls.predictions.transform.LayerNorm"),
            ArrayMap("mlm/bias", "cls.predictions.bias"),
        ],
        "sentence_pair": dense("sentence_pair/classifier/dense", "cls.seq_relationship"),
        "glue": dense("glue/classifier/dense", "classifier"),
        "multiple_choice": dense("multiple_choice/classifier/dense", "classifier"),
        **TOKEN_HEADS,
    }


def encoder(prefix: str) -> list[ArrayMap]:
    """The maps of embeddings and layers, for architectures with the array names of BERT."""
    embeddings, layer = f"{prefix}.embeddings", f"{prefix}.encoder.layer.{{layer}}"
    block = "encoder/layers/block"
    return [
        *table("encoder/word_embeddings", f"{embeddings}.word_embeddings"),
        *table("encoder/position_embeddings", f"{embeddings}.position_embeddings"),
        *table("encoder/segment_embeddings", f"{embeddings}.token_type_embeddings"),
        *norm("encoder/embeddings/norm", f"{embeddings}.LayerNorm"),
        *dense(f"{block}/attention/query", f"{layer}.attention.self.query"),
        *dense(f"{block}/attention/key", f"{layer}.attention.self.key"),
        *dense(f"{block}/attention/value", f"{layer}.attention.self.value"),
        *dense(f"{block}/attention/output", f"{layer}.attention.output.dense", inputs=2),
        *norm(f"{block}/attention_norm", f"{layer}.attention.output.LayerNorm"),
        *dense(f"{block}/feed_forward/intermediate", f"{layer}.intermediate.dense"),
        *dense(f"{block}/feed_forward/output", f"{layer}.output.dense"),
        *norm(f"{block}/feed_forward_norm", f"{layer}.output.LayerNorm"),
    ]


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    # Without a pooler in the file the model has none: no parameter of an import is random.
    pooler = {"num_pooler_layers": int("encoder/pooler" in parts)}
    return {"name": "bert", **rename(hf_config, WORDS), **pooler}


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model."""
    return {word: model[field] for word, field in WORDS.items()}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run has BERT's hyperparameters and no ELECTRA objective."""
    return variant(run) == "bert"


def variant(run: Mapping[str, Any]) -> str | None:
    """The `model_type` of a run of `models/bert.py`, which covers four; None for none of them.

    The hyperparameters decide: narrow embeddings are ELECTRA's. A model with the hyperparameters
    of both BERT and ELECTRA is an ELECTRA if it was trained by replaced token detection, or
    fine-tuned with ELECTRA's pooler.
    """
    if run["model"]["name"] != "bert":
        return None
    model = with_model_defaults(run)["model"]
    narrow = model["embedding_size"] not in (0, model["hidden_size"])
    segments, offset = model["type_vocab_size"] > 0, model["position_offset"] > 0
    if narrow or _detects_replaced_tokens(run, model):
        return "electra" if segments and not offset else None
    if not segments:
        return None if offset else "distilbert"
    return "roberta" if offset else "bert"


def _detects_replaced_tokens(run: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    if "task" in run and not model["num_pooler_layers"]:
        return run["task"].get("pooler_act") == "gelu"
    return not {"generator", "rtd"}.isdisjoint(run.get("objectives", ()))
