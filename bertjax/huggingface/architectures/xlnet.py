"""XLNet (`XLNetModel` and its heads): relative positions, a second stream, a memory.

The classifier of transformers reads the last position of a row, which is [CLS] with padding on the
left: exported tokenizers pad on that side, as the released ones do. In bertjax padding follows the
text. As positions are relative, the padding side does not change the outputs, and no weights need
conversion.

Of the two heads for question answering, bertjax has that of `XLNetForQuestionAnsweringSimple`; the
other one predicts an end given a start.
"""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.huggingface import config_words
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import TOKEN_HEADS, ArrayMap, Layout, dense, norm, table

PREFIX = "transformer"

CLASSES = {
    (): "XLNetModel",
    ("permutation_lm",): "XLNetLMHeadModel",
    ("glue",): "XLNetForSequenceClassification",
    ("multiple_choice",): "XLNetForMultipleChoice",
    ("squad",): "XLNetForQuestionAnsweringSimple",
    ("ner",): "XLNetForTokenClassification",
}

CLASSIFIER_DROPOUT = dict.fromkeys(("glue", "multiple_choice"), "summary_last_dropout")

CLASSIFIER_ACT = "tanh"

HAS_SEGMENTS = True  # relative segment encodings: there is no type_vocab_size

SPECIALS = ("<eop>", "<eod>")
"""Special tokens of the released vocabulary that only pretraining used."""

TIED_ARRAYS = {"lm_loss.weight": "transformer.word_embedding.weight"}

WORDS = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "d_inner": "intermediate_size",
    "ff_activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "layer_norm_eps",
}
"""The bertjax field of each HF field."""

MERGED_FIELDS = {"attention_probs_dropout_prob": "hidden_dropout_prob"}

READ = ("d_head", "mem_len", "clamp_len", "summary_last_dropout")

FIXED = config_words.FIXED | {
    "attn_type": "bi",
    "bi_data": False,
    "same_length": False,
    "untie_r": True,
}

_SUMMARY = {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"}

FIXED_BY_HEAD = {
    "permutation_lm": {"tie_word_embeddings": True},
    "glue": _SUMMARY,
    "multiple_choice": _SUMMARY,
}

IRRELEVANT = config_words.IRRELEVANT | {
    "reuse_len": "batching of the released pretraining; the model does not read it",
    "use_mems_eval": "whether a memory is returned; the outputs of one call do not depend on it",
    "use_mems_train": "whether a memory is returned; the outputs of one call do not depend on it",
    "start_n_top": "beam size of the question answering head that is not exchanged",
    "end_n_top": "beam size of the question answering head that is not exchanged",
}


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays; heads that read the pooled output have a pooler, the summary."""
    layer, block = f"{PREFIX}.layer.{{layer}}", "encoder/layers/block"
    attention = "encoder/layers/block/attention"
    return {
        "encoder": [
            *table("encoder/word_embeddings", f"{PREFIX}.word_embedding"),
            ArrayMap("encoder/mask_embedding", f"{PREFIX}.mask_emb"),
            ArrayMap(f"{attention}/query/kernel", f"{layer}.rel_attn.q"),
            ArrayMap(f"{attention}/key/kernel", f"{layer}.rel_attn.k"),
            ArrayMap(f"{attention}/value/kernel", f"{layer}.rel_attn.v"),
            ArrayMap(f"{attention}/output/kernel", f"{layer}.rel_attn.o", Layout.LINEAR_HEADS, 2),
            ArrayMap(f"{attention}/relative/kernel", f"{layer}.rel_attn.r"),
            ArrayMap(f"{attention}/content_bias", f"{layer}.rel_attn.r_w_bias"),
            ArrayMap(f"{attention}/position_bias", f"{layer}.rel_attn.r_r_bias"),
            ArrayMap(f"{attention}/segment_bias", f"{layer}.rel_attn.r_s_bias"),
            ArrayMap(f"{attention}/segments", f"{layer}.rel_attn.seg_embed"),
            *norm(f"{block}/attention_norm", f"{layer}.rel_attn.layer_norm"),
            *dense(f"{block}/feed_forward/intermediate", f"{layer}.ff.layer_1"),
            *dense(f"{block}/feed_forward/output", f"{layer}.ff.layer_2"),
            *norm(f"{block}/feed_forward_norm", f"{layer}.ff.layer_norm"),
        ],
        "permutation_lm": [ArrayMap("permutation_lm/bias", "lm_loss.bias")],
        "glue": [
            *dense("glue/pooler/dense", "sequence_summary.summary"),
            *dense("glue/classifier/dense", "logits_proj"),
        ],
        "multiple_choice": [
            *dense("multiple_choice/pooler/dense", "sequence_summary.summary"),
            *dense("multiple_choice/classifier/dense", "logits_proj"),
        ],
        **TOKEN_HEADS,
    }


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config, which has one dropout for all.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    renamed = rename(hf_config, WORDS)
    width = renamed["hidden_size"] // renamed["num_attention_heads"]
    check_fixed(hf_config, parts, {"d_head": width})
    return {
        "name": "xlnet",
        **renamed,
        **{field: renamed[kept] for field, kept in MERGED_FIELDS.items()},
        "mem_len": hf_config.get("mem_len") or 0,
        "clamp_len": max(hf_config.get("clamp_len", -1), 0),
    }


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model; its one dropout is that of the hidden states."""
    renamed = {word: model[field] for word, field in WORDS.items()}
    return renamed | {"mem_len": model["mem_len"], "clamp_len": model["clamp_len"] or -1}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is an XLNet."""
    return run["model"]["name"] == "xlnet"
