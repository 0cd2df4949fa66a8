"""GPT (`OpenAIGPTModel`, `OpenAIGPTLMHeadModel`): the arrays of GPT-2 without the final norm."""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.huggingface import config_words
from bertjax.huggingface.architectures import gpt2
from bertjax.huggingface.config_words import expect, take
from bertjax.huggingface.name_map import ArrayMap
from bertjax.layers.dense import activation

PREFIX = gpt2.PREFIX

CLASSES = {(): "OpenAIGPTModel", ("causal_lm",): "OpenAIGPTLMHeadModel"}

CLASSIFIER_ACT = "tanh"

SAME = {"lm_head.weight": "transformer.tokens_embed.weight"}

WORDS = {word: ours for word, ours in gpt2.WORDS.items() if word != "activation_function"}

READ = ("afn",)

FIXED, FIXED_BY_HEAD = config_words.FIXED, gpt2.FIXED_BY_HEAD

IRRELEVANT = gpt2.IRRELEVANT

_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "swish"}
"""Our name for theirs: what they call gelu has a tanh."""


def parts() -> dict[str, list[ArrayMap]]:
    """Both names of all arrays."""
    return {"encoder": gpt2.encoder("tokens_embed", "positions_embed"), "causal_lm": []}


def fields(theirs: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """Our model of their config.

    Raises:
      UserError: a field is missing, or asks for what our model does not compute.
    """
    expect(theirs, parts, FIXED, FIXED_BY_HEAD)
    absent = gpt2.ABSENT | {"n_positions": 512, "afn": "gelu"}
    theirs = absent | dict(theirs)
    if theirs["afn"] not in _ACTIVATIONS:
        raise UserError(
            f"config.json says afn={theirs['afn']!r}: expected one of {', '.join(_ACTIVATIONS)}"
        )
    act = {"activation_function": _ACTIVATIONS[theirs["afn"]]}
    taken = gpt2.one_dropout(take(theirs | act, gpt2.WORDS))
    return {"name": "gpt1", **taken, "intermediate_size": 4 * taken["hidden_size"]}


def config(ours: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """Their config of our model.

    Raises:
      UserError: theirs has no such activation, or no such width between the two maps.
    """
    # Several names may mean one function: the run's own name counts first.
    act = ours["hidden_act"]
    names = sorted(_ACTIVATIONS, key=lambda name: _ACTIVATIONS[name] != act)
    afn = next((n for n in names if activation(_ACTIVATIONS[n]) is activation(act)), None)
    if afn is None:
        raise UserError(
            f"the run has config.model.hidden_act={act!r}: a GPT of transformers has one of "
            f"{', '.join(_ACTIVATIONS.values())}"
        )
    if ours["intermediate_size"] != 4 * ours["hidden_size"]:
        raise UserError(
            f"the run has intermediate_size={ours['intermediate_size']}: a GPT of transformers has "
            f"4 times its hidden_size, {4 * ours['hidden_size']}"
        )
    return gpt2.words_of(ours, WORDS) | {"afn": afn}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is a GPT."""
    return run["model"]["name"] == "gpt1"
