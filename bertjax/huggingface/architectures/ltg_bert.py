"""LTG-BERT with the array names of ltgoslo/ltg-bert and of its wrappers (`LtgbertForMaskedLM`).

The released code has two variants that compute different outputs from arrays of the same names: the
projected relative positions are divided into heads in two ways (`layers/sub_norm.py`). The variant
is in no released config: an import reads it from the code of the folder, and an export writes it.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.huggingface.architectures import gpt_bert
from bertjax.huggingface.architectures.gpt_bert import ATTENTION
from bertjax.huggingface.name_map import LAYER, ArrayMap, dense, norm

PREFIX = ""

CLASSES = {(): "LtgbertModel", ("mlm",): "LtgbertForMaskedLM"}

REMOTE_CODE, HAS_SEGMENTS = gpt_bert.REMOTE_CODE, gpt_bert.HAS_SEGMENTS

TIED_ARRAYS = {"classifier.nonlinearity.5.weight": "embedding.word_embedding.weight"}

SPECIALS = ("[PAR]", "[TAB]")

BUFFERS = gpt_bert.BUFFERS

_INTERLEAVED = "interleaved_positions"

WORDS = gpt_bert.WORDS | {_INTERLEAVED: _INTERLEAVED}

READ, IRRELEVANT = gpt_bert.READ, gpt_bert.IRRELEVANT

FIXED, FIXED_BY_HEAD = gpt_bert.FIXED, gpt_bert.FIXED_BY_HEAD

_REQUIRED = {"attention_gate": False, "layer_weights": False, "head_norm_parameters": False}

_IS_LTG_BERT = re.compile(r"\bin_proj_v\b")
_PAIRS_OF_HEADS = re.compile(r"\b2 *\* *self\.head_size\b")


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays."""
    layer = f"transformer.layers.{LAYER}"
    return {
        "encoder": [
            *gpt_bert.embedding_maps("embedding"),
            *gpt_bert.attention_maps(f"{layer}.attention"),
            *dense(f"{ATTENTION}/value", f"{layer}.attention.in_proj_v"),
            *norm(f"{ATTENTION}/norm", f"{layer}.attention.post_layer_norm"),
            *gpt_bert.feed_forward_maps(f"{layer}.mlp.mlp"),
        ],
        "mlm": [
            *dense("mlm/transform/dense", "classifier.nonlinearity.1"),
            ArrayMap("mlm/bias", "classifier.nonlinearity.5.bias"),
        ],
    }


def fields_of_code(code: str) -> dict[str, bool]:
    """The fields of the HF config that the Python files of a folder determine."""
    if not _IS_LTG_BERT.search(code):
        return {}
    return {_INTERLEAVED: _PAIRS_OF_HEADS.search(code) is not None}


def constants(hf_config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The row of the relative position of each pair of tokens, in every layer."""
    return {
        f"transformer.layers.{layer}.attention.position_indices": gpt_bert.position_indices(
            hf_config
        )
        for layer in range(hf_config["num_hidden_layers"])
    }


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    common = gpt_bert.fields(hf_config, parts)
    if _INTERLEAVED not in hf_config:
        raise UserError(
            f"config.json lacks {_INTERLEAVED}, and the folder has no modeling_*.py that shows it: "
            "copy the code into the folder; or add the field, true if the code views the projected "
            "positions with `2*self.head_size`, else false"
        )
    return common | _REQUIRED | {_INTERLEAVED: hf_config[_INTERLEAVED]}


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model.

    Raises:
      UserError: the model has a field that the released code does not support.
    """
    gpt_bert.check_model(model, _REQUIRED)
    return {word: model[field] for word, field in WORDS.items()}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is a GPT-BERT without gate."""
    return run["model"]["name"] == "gpt_bert" and not run["model"]["attention_gate"]
