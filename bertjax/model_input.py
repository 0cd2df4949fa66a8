"""What a model reads: images, or tokens and, beside these, the characters of words."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax import build, catalog
from bertjax.data import characters, images
from bertjax.interfaces import Tokenizer


def max_chars_per_word(model: Mapping[str, Any]) -> int:
    """How many characters of a word the model of `config.model` reads; 0 if it reads none."""
    module = catalog.load("models", model["name"]).Model
    return model["max_chars_per_word"] if getattr(module, "reads_characters", False) else 0


def examples(
    config: ConfigDict, split: Any, tokenizer: Tokenizer | None, length: int, rows: int = 1
) -> Any:
    """The examples of a split, with all that the model reads.

    Args:
      config: Of the run.
      split: A corpus, or images.
      tokenizer: Of the run; none for images.
      length: Tokens of an example.
      rows: Rows that go on from step to step, where the format has such.
    """
    if tokenizer is None:
        return images.ImageExamples(split, config.seed)
    made = build.examples(config, split, tokenizer, length, rows)
    width = max_chars_per_word(config.model)
    return characters.Spelled(made, characters.vocabulary(tokenizer, width)) if width else made
