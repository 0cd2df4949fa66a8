"""Translate fields of Hugging Face's `config.json`, and refuse unsupported values."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from bertjax.errors import UserError
from bertjax.layers.dense import activation

_ASSUMED = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}
"""Defaults of BERT-style configs in transformers, by the names of bertjax fields."""

FIXED = {"is_encoder_decoder": False}
"""Fields of every config in transformers of which bertjax supports one value."""

IRRELEVANT = {
    "architectures": "the arrays of the file determine the heads",
    "model_type": "it selects the architecture that reads the config",
    "transformers_version": "a record of the version that wrote the file",
    "_name_or_path": "a record of where the model was loaded from",
    "dtype": "the type of the arrays, which the arrays store as well",
    "return_dict": "the Python type of the outputs",
    "output_hidden_states": "which outputs are returned, not their values",
    "output_attentions": "which outputs are returned, not their values",
    "use_cache": "which outputs are returned, not their values",
    "chunk_size_feed_forward": "trades memory for speed, with the same outputs",
    "pad_token_id": "padding is excluded by the attention mask",
    "bos_token_id": "generation in transformers; bertjax takes it from the tokenizer",
    "eos_token_id": "generation in transformers; bertjax takes it from the tokenizer",
    "id2label": "classes of a task's head (`bertjax/huggingface/heads.py`)",
    "label2id": "classes of a task's head (`bertjax/huggingface/heads.py`)",
    "problem_type": "the loss of a task's head (`bertjax/huggingface/heads.py`)",
}
"""Fields of every config in transformers that correspond to no field of bertjax models, and why."""


def rename(
    hf_config: Mapping[str, Any],
    words: Mapping[str, str],
    assumed: Mapping[str, Any] = MappingProxyType(_ASSUMED),
) -> dict[str, Any]:
    """The fields of a bertjax model, from those of the HF config with the same meaning.

    Args:
      hf_config: The HF config.
      words: The bertjax field of each HF field.
      assumed: Values of bertjax fields that the config may leave out.

    Raises:
      UserError: a field is missing, or an activation is not one of bertjax.
    """
    missing = [
        word for word, name in words.items() if word not in hf_config and name not in assumed
    ]
    if missing:
        raise UserError(f"config.json lacks {', '.join(missing)}: restore it from its source")
    renamed = {
        name: hf_config[word] if word in hf_config else assumed[name]
        for word, name in words.items()
    }
    if "hidden_act" in renamed:
        activation(renamed["hidden_act"])
    return renamed


def check_fixed(
    hf_config: Mapping[str, Any],
    parts: Collection[str],
    fixed: Mapping[str, Any],
    by_head: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Refuses a config with another value of a field than the one that bertjax supports.

    Args:
      hf_config: The HF config; an absent field has the supported value.
      parts: The parts of the bertjax parameters in the file.
      fixed: The supported values.
      by_head: The same for fields that only one of the parts reads.

    Raises:
      UserError: naming the field.
    """
    expected = dict(fixed)
    for part in parts:
        expected |= by_head.get(part, {})
    for word, value in expected.items():
        if hf_config.get(word, value) != value:
            raise UserError(
                f"{word} of config.json: got {hf_config[word]!r}, expected {value!r}, the only "
                "value that bertjax supports for this model"
            )
