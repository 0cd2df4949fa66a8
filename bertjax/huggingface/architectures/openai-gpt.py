"""GPT (`OpenAIGPTModel`, `OpenAIGPTLMHeadModel`): the arrays of GPT-2 without the final norm."""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.huggingface import config_words
from bertjax.huggingface.architectures import gpt2
from bertjax.huggingface.config_words import check_fixed, rename
from bertjax.huggingface.name_map import ArrayMap
from bertjax.layers.dense import activation

PREFIX = gpt2.PREFIX

CLASSES = {(): "OpenAIGPTModel", ("causal_lm",): "OpenAIGPTLMHeadModel"}

CLASSIFIER_ACT = "tanh"

TIED_ARRAYS = {"lm_head.weight": "transformer.tokens_embed.weight"}

WORDS = {word: field for word, field in gpt2.WORDS.items() if word != "activation_function"}

READ = ("afn",)

FIXED, FIXED_BY_HEAD = config_words.FIXED, gpt2.FIXED_BY_HEAD

IRRELEVANT = gpt2.IRRELEVANT

_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "swish"}
"""The bertjax name of each activation: "gelu" is the tanh approximation in this architecture."""


def parts() -> dict[str, list[ArrayMap]]:
    """The maps of all arrays."""
    return {"encoder": gpt2.encoder("tokens_embed", "positions_embed"), "causal_lm": []}


def fields(hf_config: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """The bertjax fields of an HF config.

    Raises:
      UserError: a field is missing, or has a value that bertjax does not support.
    """
    check_fixed(hf_config, parts, FIXED, FIXED_BY_HEAD)
    hf_config = gpt2.DEFAULTS | {"n_positions": 512, "afn": "gelu"} | dict(hf_config)
    if hf_config["afn"] not in _ACTIVATIONS:
        raise UserError(
            f"afn of config.json: got {hf_config['afn']!r}, expected one of "
            f"{', '.join(_ACTIVATIONS)}; restore it from its source"
        )
    act = {"activation_function": _ACTIVATIONS[hf_config["afn"]]}
    renamed = gpt2.merge_dropouts(rename(hf_config | act, gpt2.WORDS))
    return {"name": "gpt1", **renamed, "intermediate_size": 4 * renamed["hidden_size"]}


def config(model: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """The HF config of a bertjax model.

    Raises:
      UserError: transformers does not have this activation, or this intermediate width.
    """
    # Several names may mean one function: the name in the run's config takes precedence.
    act = model["hidden_act"]
    names = sorted(_ACTIVATIONS, key=lambda name: _ACTIVATIONS[name] != act)
    afn = next((n for n in names if activation(_ACTIVATIONS[n]) is activation(act)), None)
    if afn is None:
        raise UserError(
            f"config.model.hidden_act: got {act!r}, expected one of "
            f"{', '.join(_ACTIVATIONS.values())}, those of a GPT of transformers; the run cannot "
            "be exported"
        )
    if model["intermediate_size"] != 4 * model["hidden_size"]:
        raise UserError(
            f"config.model.intermediate_size: got {model['intermediate_size']}, expected "
            f"{4 * model['hidden_size']}, 4 times hidden_size, as in transformers; the run cannot "
            "be exported"
        )
    return gpt2.hf_words(model, WORDS) | {"afn": afn}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is a GPT."""
    return run["model"]["name"] == "gpt1"
