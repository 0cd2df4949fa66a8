"""GPT-2 (`GPT2Model`, `GPT2LMHeadModel`); also GPT-3.

Linear layers are Conv1Ds in transformers, [inputs, outputs]; query, key and value are one array.
The vocabulary logits are matmuls with the word embeddings: the head has no arrays.
"""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.huggingface import config_words
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import ArrayMap, conv1d, norm, table

PREFIX = "transformer"

CLASSES = {(): "GPT2Model", ("causal_lm",): "GPT2LMHeadModel"}

CLASSIFIER_ACT = "tanh"

TIED_ARRAYS = {"lm_head.weight": "transformer.wte.weight"}

WORDS = {
    "vocab_size": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "activation_function": "hidden_act",
    "resid_pdrop": "hidden_dropout_prob",
    "embd_pdrop": "embd_pdrop",
    "attn_pdrop": "attention_probs_dropout_prob",
    "n_positions": "max_position_embeddings",
    "initializer_range": "initializer_range",
    "layer_norm_epsilon": "layer_norm_eps",
}
"""The bertjax field of each HF field."""

READ = ("n_inner",)

_SUMMARY = (
    *("summary_type", "summary_use_proj", "summary_activation"),
    *("summary_proj_to_labels", "summary_first_dropout"),
)

FIXED_BY_HEAD = {"causal_lm": {"tie_word_embeddings": True}}

FIXED = config_words.FIXED | {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}

IRRELEVANT = (
    config_words.IRRELEVANT
    | dict.fromkeys(
        _SUMMARY, "the summary of GPT2DoubleHeadsModel, which bertjax does not exchange"
    )
    | {"reorder_and_upcast_attn": "the precision of attention in float16"}
)

DEFAULTS = {
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "n_positions": 1024,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
}
"""Defaults of the config in transformers."""


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays."""
    last = norm("encoder/norm", "transformer.ln_f")
    return {"encoder": [*encoder("wte", "wpe"), *last], "causal_lm": []}


def encoder(words: str, positions: str) -> list[ArrayMap]:
    """The maps of embeddings and layers; GPT and GPT-2 differ in the names of the embeddings."""
    layer, block = f"{PREFIX}.h.{{layer}}", "encoder/layers/block"
    qkv = tuple(f"{block}/attention/{name}" for name in ("query", "key", "value"))
    return [
        *table("encoder/word_embeddings", f"{PREFIX}.{words}"),
        *table("encoder/position_embeddings", f"{PREFIX}.{positions}"),
        *conv1d(qkv, f"{layer}.attn.c_attn"),
        *conv1d(f"{block}/attention/output", f"{layer}.attn.c_proj", inputs=2),
        *norm(f"{block}/attention_norm", f"{layer}.ln_1"),
        *conv1d(f"{block}/feed_forward/intermediate", f"{layer}.mlp.c_fc"),
        *conv1d(f"{block}/feed_forward/output", f"{layer}.mlp.c_proj"),
        *norm(f"{block}/feed_forward_norm", f"{layer}.ln_2"),
    ]


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    renamed = merge_dropouts(rename(DEFAULTS | dict(hf_config), WORDS))
    width = hf_config.get("n_inner") or 4 * renamed["hidden_size"]
    return {"name": "gpt2", **renamed, "intermediate_size": width}


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model."""
    return hf_words(model, WORDS) | {"n_inner": model["intermediate_size"]}


def merge_dropouts(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a bertjax model without `embd_pdrop`, if it equals `hidden_dropout_prob`."""
    same = model["embd_pdrop"] == model["hidden_dropout_prob"]
    return {name: value for name, value in model.items() if not same or name != "embd_pdrop"}


def hf_words(model: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """The HF fields of a bertjax model, whose `embd_pdrop` may be absent or None."""
    if model.get("embd_pdrop") is None:
        model = {**model, "embd_pdrop": model["hidden_dropout_prob"]}
    return {word: model[field] for word, field in words.items()}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is a GPT-2."""
    return run["model"]["name"] == "gpt2"
