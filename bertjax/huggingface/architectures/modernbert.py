"""ModernBERT (`ModernBertModel` and its heads).

Query, key and value are one array, and so are the two halves of a gated feed-forward net. Layer 0,
without a norm before attention, is `first_layer`; the others are stacked.
"""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.huggingface import config_words
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import ArrayMap, dense, norm, table, with_layers

PREFIX = "model"

CLASSES = {
    (): "ModernBertModel",
    ("mlm",): "ModernBertForMaskedLM",
    ("glue",): "ModernBertForSequenceClassification",
    ("multiple_choice",): "ModernBertForMultipleChoice",
    ("squad",): "ModernBertForQuestionAnswering",
    ("ner",): "ModernBertForTokenClassification",
}

CLASSIFIER_DROPOUT = dict.fromkeys(("glue", "multiple_choice", "ner"), "classifier_dropout")

CLASSIFIER_ACT = ""

TOKEN_TRANSFORM = True

HAS_SEGMENTS = False

TIED_ARRAYS = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}

WORDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "hidden_activation": "hidden_act",
    "embedding_dropout": "embedding_dropout",
    "attention_dropout": "attention_probs_dropout_prob",
    "mlp_dropout": "hidden_dropout_prob",
    "max_position_embeddings": "max_position_embeddings",
    "local_attention": "local_attention",
    "classifier_pooling": "classifier_pooling",
    "initializer_range": "initializer_range",
    "norm_eps": "layer_norm_eps",
}
"""The bertjax field of each HF field."""

MERGED_FIELDS = {"attention_output_dropout_prob": "attention_probs_dropout_prob"}

READ = (
    *("classifier_dropout", "classifier_activation", "layer_types", "rope_parameters"),
    *("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
)

FIXED = config_words.FIXED | {
    "attention_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
}

FIXED_BY_HEAD = {"mlm": {"tie_word_embeddings": True}}

IRRELEVANT = config_words.IRRELEVANT | {
    "cls_token_id": "bertjax takes it from the tokenizer",
    "sep_token_id": "bertjax takes it from the tokenizer",
    "initializer_cutoff_factor": "initial values of the weights",
    "deterministic_flash_attn": "how attention is computed, not its values",
    "reference_compile": "how the model is compiled, not its values",
    "repad_logits_with_grad": "the layout of logits in training",
    "sparse_prediction": "which logits are returned, not their values",
    "sparse_pred_ignore_index": "which logits are returned, not their values",
}

_DEFAULTS = {
    "hidden_activation": "gelu",
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "mlp_dropout": 0.0,
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "classifier_pooling": "cls",
    "initializer_range": 0.02,
    "norm_eps": 1e-5,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
}
"""Defaults of the config in transformers."""

_FULL, _LOCAL = "full_attention", "sliding_attention"


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays; every head has its own transform, with the same array names."""
    return {
        "encoder": [
            *table("encoder/word_embeddings", "model.embeddings.tok_embeddings"),
            *norm("encoder/embeddings_norm", "model.embeddings.norm", bias=False),
            *_block("encoder/first_layer", "model.layers.0"),
            *with_layers(_stacked_maps(), lambda model: range(1, model["num_hidden_layers"])),
            *norm("encoder/norm", "model.final_norm", bias=False),
        ],
        "mlm": [*_transform("mlm/transform"), ArrayMap("mlm/bias", "decoder.bias")],
        **{task: _task("pooler", task) for task in ("glue", "multiple_choice")},
        **{task: _task("transform", task) for task in ("squad", "ner")},
    }


def _task(transform: str, task: str) -> list[ArrayMap]:
    return [
        *_transform(f"{task}/{transform}"),
        *dense(f"{task}/classifier/dense", "classifier"),
    ]


def _block(block: str, layer: str) -> list[ArrayMap]:
    qkv = tuple(f"{block}/attention/{name}" for name in ("query", "key", "value"))
    halves = tuple(f"{block}/feed_forward/{name}" for name in ("intermediate", "gate"))
    return [
        *dense(qkv, f"{layer}.attn.Wqkv", bias=False),
        *dense(f"{block}/attention/output", f"{layer}.attn.Wo", inputs=2, bias=False),
        *norm(f"{block}/feed_forward_norm", f"{layer}.mlp_norm", bias=False),
        *dense(halves, f"{layer}.mlp.Wi", bias=False),
        *dense(f"{block}/feed_forward/output", f"{layer}.mlp.Wo", bias=False),
    ]


def _stacked_maps() -> list[ArrayMap]:
    block, layer = "encoder/layers/block", "model.layers.{layer}"
    attention_norm = norm(f"{block}/attention_norm", f"{layer}.attn_norm", bias=False)
    return [*attention_norm, *_block(block, layer)]


def _transform(path: str) -> list[ArrayMap]:
    return [
        *dense(f"{path}/dense", "head.dense", bias=False),
        *norm(f"{path}/norm", "head.norm", bias=False),
    ]


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config, as of transformers 4 or 5.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    hf_config = _DEFAULTS | dict(hf_config)
    renamed = rename(hf_config, WORDS)
    head_act = hf_config.get("classifier_activation", renamed["hidden_act"])
    if head_act != renamed["hidden_act"]:
        raise UserError(
            f"classifier_activation of config.json: got {head_act!r}, expected "
            f"{renamed['hidden_act']!r}, as hidden_activation, the only value that bertjax supports"
        )
    return {
        "name": "modernbert",
        **renamed,
        **{field: renamed[kept] for field, kept in MERGED_FIELDS.items()},
        "global_attn_every_n_layers": _period(hf_config),
        "global_rope_theta": _theta(hf_config, _FULL, "global_rope_theta"),
        "local_rope_theta": _theta(hf_config, _LOCAL, "local_rope_theta"),
    }


def _period(hf_config: Mapping[str, Any]) -> int:
    """The distance of layers with global attention; `layer_types` has precedence."""
    found = hf_config.get("layer_types")
    if found is None:
        return hf_config["global_attn_every_n_layers"]
    period = next((n for n, kind in enumerate(found) if n and kind == _FULL), len(found))
    if list(found) != _layer_types(len(found), period):
        raise UserError(
            f"layer_types of config.json: got {', '.join(found)}, expected {_FULL} in the first "
            f"and every n-th layer and {_LOCAL} in all others"
        )
    return period


def _layer_types(num_layers: int, period: int) -> list[str]:
    return [_LOCAL if layer % period else _FULL for layer in range(num_layers)]


def _theta(hf_config: Mapping[str, Any], kind: str, word: str) -> float:
    """The base of the rotary frequencies; `rope_parameters`, of transformers 5, has precedence.

    A `local_rope_theta` of null is that of global attention.
    """
    rope = (hf_config.get("rope_parameters") or {}).get(kind) or {}
    if rope.get("rope_type", "default") != "default":
        raise UserError(
            f"rope_type of config.json: got {rope['rope_type']!r} for {kind}, expected 'default', "
            "the only value that bertjax supports"
        )
    theta = rope.get("rope_theta", hf_config[word])
    return float(hf_config["global_rope_theta"] if theta is None else theta)


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model, which transformers 4.48 and later read."""
    period, num_layers = model["global_attn_every_n_layers"], model["num_hidden_layers"]
    thetas = {_FULL: model["global_rope_theta"], _LOCAL: model["local_rope_theta"]}
    return {
        **{word: model[field] for word, field in WORDS.items()},
        "classifier_activation": model["hidden_act"],
        "global_attn_every_n_layers": period,
        "global_rope_theta": thetas[_FULL],
        "local_rope_theta": thetas[_LOCAL],
        "layer_types": _layer_types(num_layers, period),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
        },
    }


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is a ModernBERT."""
    return run["model"]["name"] == "modernbert"
