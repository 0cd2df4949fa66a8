"""Mean mixer: an architecture that a fork of transformers might have."""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.huggingface import config_words
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import ArrayMap, dense, table

PREFIX = "mixer"

CLASSES = {
    (): "MeanMixerModel",
    ("token_count",): "MeanMixerForTokenCount",
    ("glue",): "MeanMixerForSequenceClassification",
}

WORDS = {"vocab_size": "vocab_size", "dim": "hidden_size", "init_std": "initializer_range"}

READ = ()

FIXED = config_words.FIXED | {"mixing": "mean"}

FIXED_BY_HEAD = {}

IRRELEVANT = config_words.IRRELEVANT


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays."""
    return {
        "encoder": table("encoder/word_embeddings", f"{PREFIX}.words"),
        "encoder/pooler": dense("encoder/pooler/dense", f"{PREFIX}.pooler"),
        "token_count": dense("token_count/share/dense", "share"),
        "glue": dense("glue/classifier/dense", "classifier"),
    }


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    return {"name": "mean_mixer", **rename(hf_config, WORDS)}


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model."""
    return {word: model[field] for word, field in WORDS.items()} | {"mixing": "mean"}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is a mean mixer."""
    return run["model"]["name"] == "mean_mixer"
