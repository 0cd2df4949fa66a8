"""Reading a `config.json` of Hugging Face: its words for our fields, and what it must not ask."""

from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.layers.activations import activation

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
    activation(taken["hidden_act"])
    return taken


def expect(theirs: Mapping[str, Any], **wanted: Any) -> None:
    """Refuses a config that asks for another computation than the usual one.

    Raises:
      UserError: naming the field; one that is absent has the usual value.
    """
    for word, value in wanted.items():
        if theirs.get(word, value) != value:
            raise UserError(
                f"config.json says {word}={theirs[word]!r}: bertjax has this model with "
                f"{word}={value!r} only"
            )
