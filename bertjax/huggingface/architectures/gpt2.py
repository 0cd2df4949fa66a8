"""GPT-2 (`GPT2Model`, `GPT2LMHeadModel`); also GPT-3.

Their linear maps are Conv1Ds, with the inputs first, and query, key and value are one array. The
scores of the vocabulary are products with the word embeddings: a head without arrays of its own.
"""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.huggingface import config_words
from bertjax.huggingface.config_words import expect, take
from bertjax.huggingface.name_map import ArrayMap, conv1d, norm, table

PREFIX = "transformer"

CLASSES = {(): "GPT2Model", ("causal_lm",): "GPT2LMHeadModel"}

CLASSIFIER_ACT = "tanh"

SAME = {"lm_head.weight": "transformer.wte.weight"}

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
"""Our field for each of theirs."""

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
    | dict.fromkeys(_SUMMARY, "the summary of the class with two heads, which is not exchanged")
    | {"reorder_and_upcast_attn": "the type in which float16 attention is computed; float32 is"}
)

ABSENT = {
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "n_positions": 1024,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
}
"""What they have where their config says nothing."""


def parts() -> dict[str, list[ArrayMap]]:
    """Both names of all arrays."""
    last = norm("encoder/norm", "transformer.ln_f")
    return {"encoder": [*encoder("wte", "wpe"), *last], "causal_lm": []}


def encoder(words: str, places: str) -> list[ArrayMap]:
    """Embeddings and layers, which are named alike in GPT but for the embeddings."""
    layer, block = f"{PREFIX}.h.{{layer}}", "encoder/layers/block"
    qkv = tuple(f"{block}/attention/{name}" for name in ("query", "key", "value"))
    return [
        *table("encoder/word_embeddings", f"{PREFIX}.{words}"),
        *table("encoder/position_embeddings", f"{PREFIX}.{places}"),
        *conv1d(qkv, f"{layer}.attn.c_attn"),
        *conv1d(f"{block}/attention/output", f"{layer}.attn.c_proj", inputs=2),
        *norm(f"{block}/attention_norm", f"{layer}.ln_1"),
        *conv1d(f"{block}/feed_forward/intermediate", f"{layer}.mlp.c_fc"),
        *conv1d(f"{block}/feed_forward/output", f"{layer}.mlp.c_proj"),
        *norm(f"{block}/feed_forward_norm", f"{layer}.ln_2"),
    ]


def fields(theirs: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """Our model of their config.

    Raises:
      UserError: a field is missing, or asks for what our model does not compute.
    """
    expect(theirs, parts, FIXED, FIXED_BY_HEAD)
    taken = one_dropout(take(ABSENT | dict(theirs), WORDS))
    width = theirs.get("n_inner") or 4 * taken["hidden_size"]
    return {"name": "gpt2", **taken, "intermediate_size": width}


def config(ours: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """Their config of our model."""
    return words_of(ours, WORDS) | {"n_inner": ours["intermediate_size"]}


def one_dropout(taken: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of our model; a dropout of embeddings that is the usual one is left open."""
    same = taken["embd_pdrop"] == taken["hidden_dropout_prob"]
    return {name: value for name, value in taken.items() if not same or name != "embd_pdrop"}


def words_of(ours: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Their names for the fields of our model, whose dropout of embeddings may be left open."""
    if ours.get("embd_pdrop") is None:
        ours = {**ours, "embd_pdrop": ours["hidden_dropout_prob"]}
    return {theirs: ours[field] for theirs, field in words.items()}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is a GPT-2."""
    return run["model"]["name"] == "gpt2"
