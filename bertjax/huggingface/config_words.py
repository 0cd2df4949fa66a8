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
"""What BERT and its kin have in transformers where a config says nothing, by our names."""

FIXED = {"is_encoder_decoder": False}
"""Fields of every config in transformers of which bertjax has one value."""

IRRELEVANT = {
    "architectures": "the arrays of the file decide which heads there are",
    "model_type": "it chooses the file that reads the config",
    "transformers_version": "a record of the version that wrote the file",
    "_name_or_path": "a record of where the model was loaded from",
    "dtype": "the type of the arrays, which the arrays have themselves",
    "return_dict": "the Python type of the outputs",
    "output_hidden_states": "which outputs are returned, not their values",
    "output_attentions": "which outputs are returned, not their values",
    "use_cache": "which outputs are returned, not their values",
    "chunk_size_feed_forward": "memory against speed, the outputs are the same",
    "pad_token_id": "padding is hidden by the attention mask",
    "bos_token_id": "generation in transformers; bertjax takes it from the tokenizer",
    "eos_token_id": "generation in transformers; bertjax takes it from the tokenizer",
    "id2label": "classes of a task's head (`bertjax/huggingface/heads.py`)",
    "label2id": "classes of a task's head (`bertjax/huggingface/heads.py`)",
    "problem_type": "the loss of a task's head (`bertjax/huggingface/heads.py`)",
}
"""Fields of every config in transformers that no field of our models stands for, and why not."""


def take(theirs: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Values of their config under our names.

    Args:
      theirs: Their config.
      words: Our field for each of theirs.

    Raises:
      UserError: a size is missing, or one names an activation that we do not have.
    """
    missing = [word for word, ours in words.items() if word not in theirs and ours not in _ASSUMED]
    if missing:
        raise UserError(f"config.json lacks {', '.join(missing)}: restore it from where it came")
    taken = {
        ours: theirs[word] if word in theirs else _ASSUMED[ours] for word, ours in words.items()
    }
    if "hidden_act" in taken:
        activation(taken["hidden_act"])
    return taken


def expect(
    theirs: Mapping[str, Any],
    parts: Collection[str],
    fixed: Mapping[str, Any],
    by_head: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Refuses a config that asks for another computation than the usual one.

    Args:
      theirs: Their config.
      parts: The parts of our parameters that the file has.
      fixed: Fields with the one value that bertjax has.
      by_head: The same for fields that only one of the parts reads.

    Raises:
      UserError: naming the field; one that is absent has the usual value.
    """
    expected = dict(fixed)
    for part in parts:
        expected |= by_head.get(part, {})
    for word, value in expected.items():
        if theirs.get(word, value) != value:
            raise UserError(
                f"config.json says {word}={theirs[word]!r}: bertjax has this model with "
                f"{word}={value!r} only"
            )
