"""GPT-BERT with the array names of the BabyLM baselines of BabyLM-community (`GPTBERT...`).

Only imported, and exported again; runs of bertjax are exported as `gpt_bert`, whose output layer
may differ from the word embeddings: the code of this architecture shares the two.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.huggingface.architectures import gpt_bert
from bertjax.huggingface.name_map import ArrayMap

PREFIX = "model"

CLASSES = {(): "GPTBERT", ("mntp",): "GPTBERTForMaskedLM"}

REMOTE_CODE, HAS_SEGMENTS = gpt_bert.REMOTE_CODE, gpt_bert.HAS_SEGMENTS

SPECIALS, BUFFERS = gpt_bert.SPECIALS, gpt_bert.BUFFERS

WORDS, READ, IRRELEVANT = gpt_bert.WORDS, gpt_bert.READ, gpt_bert.IRRELEVANT

FIXED, FIXED_BY_HEAD = gpt_bert.FIXED, gpt_bert.FIXED_BY_HEAD

fields, config = gpt_bert.fields, gpt_bert.config


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays."""
    return gpt_bert.maps(f"{PREFIX}.", f"{PREFIX}.", "lm_head")


def constants(hf_config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """As of `gpt_bert`: some copies of the code read them, the others ignore them."""
    found = gpt_bert.constants(hf_config)
    return {name.replace("transformer", PREFIX): array for name, array in found.items()}


def describes(run: Mapping[str, Any]) -> bool:
    """False for every run: `gpt_bert` describes them."""
    return False
