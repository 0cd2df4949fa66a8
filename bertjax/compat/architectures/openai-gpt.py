"""GPT (`OpenAIGPTModel`, `OpenAIGPTLMHeadModel`): the arrays of GPT-2 but for the last norm."""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.compat.architectures import gpt2
from bertjax.compat.config_words import expect, take
from bertjax.compat.name_map import Pair
from bertjax.errors import UserError

PREFIX = gpt2.PREFIX

CLASSES = {(): "OpenAIGPTModel", ("causal_lm",): "OpenAIGPTLMHeadModel"}

CLASSIFIER_ACT = "tanh"

SAME = {"lm_head.weight": "transformer.tokens_embed.weight"}

FUSED = gpt2.FUSED

_WORDS = {word: ours for word, ours in gpt2.WORDS.items() if word != "activation_function"}

_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}
"""Our name for theirs: what they call gelu has a tanh."""


def parts() -> dict[str, list[Pair]]:
    """Both names of all arrays."""
    return {"encoder": gpt2.encoder("tokens_embed", "positions_embed"), "causal_lm": []}


def fields(theirs: Mapping[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """Our model of their config.

    Raises:
      UserError: a field is missing, or asks for what our model does not compute.
    """
    expect(theirs, tie_word_embeddings=True)
    absent = gpt2.ABSENT | {"n_positions": 512, "afn": "gelu"}
    theirs = absent | dict(theirs)
    if theirs["afn"] not in _ACTIVATIONS:
        raise UserError(
            f"config.json says afn={theirs['afn']!r}: wanted one of {', '.join(_ACTIVATIONS)}"
        )
    act = {"activation_function": _ACTIVATIONS[theirs["afn"]]}
    taken = take(theirs | act, gpt2.WORDS)
    expect(theirs, embd_pdrop=taken["hidden_dropout_prob"])
    return {"name": "gpt1", **taken, "intermediate_size": 4 * taken["hidden_size"]}


def config(ours: Mapping[str, Any], heads: Collection[str]) -> dict[str, Any]:
    """Their config of our model.

    Raises:
      UserError: theirs has no such activation, or no such width between the two maps.
    """
    names = {act: name for name, act in reversed(_ACTIVATIONS.items())}
    if ours["hidden_act"] not in names:
        raise UserError(
            f"the run has config.model.hidden_act={ours['hidden_act']!r}: a GPT of transformers "
            f"has one of {', '.join(names)}"
        )
    if ours["intermediate_size"] != 4 * ours["hidden_size"]:
        raise UserError(
            f"the run has intermediate_size={ours['intermediate_size']}: a GPT of transformers has "
            f"4 times its hidden_size, {4 * ours['hidden_size']}"
        )
    made = {theirs: ours[field] for theirs, field in _WORDS.items()}
    return made | {"embd_pdrop": ours["hidden_dropout_prob"], "afn": names[ours["hidden_act"]]}


def describes(run: Mapping[str, Any]) -> bool:
    """Whether a run's model is a GPT."""
    return run["model"]["name"] == "gpt1"
