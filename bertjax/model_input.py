"""What a model reads beside the tokens: so far the characters of words."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax import catalog
from bertjax.data import characters
from bertjax.interfaces import Tokenizer


def max_chars_per_word(model: Mapping[str, Any]) -> int:
    """How many characters of a word the model of `config.model` reads; 0 if it reads none."""
    module = catalog.load("models", model["name"]).Model
    return model["max_chars_per_word"] if getattr(module, "reads_characters", False) else 0


def completed(model: Mapping[str, Any], examples: Any, tokenizer: Tokenizer) -> Any:
    """Examples of a corpus, with all that the model reads."""
    width = max_chars_per_word(model)
    if not width:
        return examples
    return characters.Spelled(examples, characters.vocabulary(tokenizer, width))


def random(
    model: Mapping[str, Any], rows: Mapping[str, np.ndarray], generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """A host batch with all that the model reads, at random."""
    width = max_chars_per_word(model)
    if not width:
        return dict(rows)
    shape = (*rows["input_ids"].shape, width)
    return {**rows, "char_ids": generator.integers(0, 256, shape, np.int16)}
