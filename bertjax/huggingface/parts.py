"""Choose the parts of a run that an export can hold, and report those left out, with the reason.

released    config, arrays -> Released, and a reason for every part that is left behind
"""

import dataclasses
import json
import re
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.huggingface import classes, name_map
from bertjax.huggingface import heads as huggingface_heads
from bertjax.huggingface import model as huggingface_model
from bertjax.huggingface.model import ENCODER, POOLER, READ_TEXTS, Released, any_under
from bertjax.layers.dense import activation
from bertjax.tokenizers.special_tokens import end_of_text

_TRAIN_THE_POOLER = ("sentence_pair",)
"""Objectives that learn from the pooled output, as tasks do that read whole texts."""

_NO_PLACE = "transformers has no place for it"
_INPUTS = ("knowledge", "document_context")
"""Fields of `config.data` that add to the texts what a tokenizer of transformers does not."""

_NO_INPUT = "transformers reads texts without it"
_UNTRAINED = "this run has not trained it"
_OWN_MODEL = {"generator": "it is a model of its own, which --generator exports"}


def released(
    model_type: str,
    run: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    tokenizer: Any,
    what: str,
) -> tuple[Released, dict[str, str]]:
    """A run's arrays as a model of theirs, and why a part of them is not in it.

    Args:
      model_type: The architecture of theirs.
      run: Its config.
      arrays: Its parameters by name.
      tokenizer: Its tokenizer.
      what: Names the run in the error.

    Raises:
      UserError: the model has what theirs cannot have.
    """
    made = Released(model_type, {}, {}, run.get("imported", {}).get("dtype", "float32"))
    architecture = made.architecture
    subtrees = list(dict.fromkeys(name.partition("/")[0] for name in arrays))
    left_behind = dict.fromkeys(_untrained(run, arrays), _UNTRAINED)
    original = json.loads(run.get("imported", {}).get("config", "{}"))
    bare = huggingface_model.bare_heads(architecture) & set(run.get("objectives", ()))
    if original.get("architectures") == [architecture.CLASSES[()]]:
        bare = set()  # its head has no arrays: a run has it, the file had not
    heads = huggingface_model.heads_of_a_class(
        architecture, bare | set(subtrees) - left_behind.keys()
    )
    for part in subtrees:
        if part not in (ENCODER, *heads):
            left_behind.setdefault(part, _OWN_MODEL.get(part, _NO_PLACE))
    arrays = {n: array for n, array in arrays.items() if not _is_under(left_behind, n)}
    task = huggingface_model.task_of(heads)
    if task in READ_TEXTS:
        arrays = _with_their_pooler(architecture, run, arrays)
    if task == "glue":
        arrays = classes.to_hf(run, arrays)
    _check_activations(architecture, run, heads)
    model = architecture.config(run["model"], heads)
    if model.get("pad_token_id", tokenizer.pad_id) != tokenizer.pad_id:
        raise UserError(
            f"position_offset={run['model']['position_offset']} makes pad_token_id="
            f"{model['pad_token_id']} in transformers; the tokenizer pads with {tokenizer.pad_id}"
        )
    config = model | {
        "model_type": model_type,
        "architectures": [architecture.CLASSES[heads]],
        **(huggingface_heads.their_words(architecture, run) if task else {}),
    }
    config = (
        _as_imported(architecture, original, config, heads)
        if original
        else {
            "pad_token_id": tokenizer.pad_id,
            "bos_token_id": tokenizer.cls_id,
            "eos_token_id": end_of_text(tokenizer),
            **config,
        }
    )
    pairs = huggingface_model.pairs_of(
        architecture, huggingface_model.parts_of(architecture, arrays)
    )
    theirs = name_map.to_hf(pairs, arrays, run["model"], what)
    unread = [field for field in _INPUTS if run.get("data", {}).get(field)]
    left_behind |= {f"config.data.{field}": _NO_INPUT for field in unread}
    return dataclasses.replace(made, config=config, arrays=theirs), left_behind


def _check_activations(
    architecture: ModuleType, run: Mapping[str, Any], heads: Collection[str]
) -> None:
    """Refuses a head with another activation than theirs would have.

    Raises:
      UserError: naming both.
    """
    fixed = getattr(architecture, "HEAD_ACT", {})
    for head in heads:
        fields, act = run.get("objectives", {}).get(head, {}), run["model"]["hidden_act"]
        found, expected = fields.get("hidden_act") or act, fixed.get(head, act)
        if activation(found) is not activation(expected):
            raise UserError(
                f"the activation of head {head}: got {found!r}, expected {expected!r}, the only "
                f"one that {architecture.CLASSES[tuple(heads)]} has in transformers; set "
                f"hidden_act={expected} in its objective and train again"
            )


def _as_imported(
    architecture: ModuleType,
    original: Mapping[str, Any],
    config: Mapping[str, Any],
    heads: Collection[str],
) -> dict[str, Any]:
    """The config that a run was imported with, but for what reads otherwise than the run's.

    A field keeps its spelling (null for a default, another name of an activation), and one that
    no model of ours has keeps its value.

    Args:
      architecture: Of the model.
      original: The config of the file.
      config: The run's own, in their words.
      heads: Of the exported class.
    """
    fields = architecture.fields(original, (ENCODER, *heads))
    read = {**original, **architecture.config(fields, heads)}
    for word in getattr(architecture, "CLASSIFIER_DROPOUT", {}).values():
        if read.get(word) is None:
            read[word] = fields["hidden_dropout_prob"]
    differs = {w: v for w, v in config.items() if w not in original or read[w] != v}
    return {**original, **differs}


def _untrained(run: Mapping[str, Any], arrays: Collection[str]) -> list[str]:
    """The parts that no loss of the run has reached."""
    if "imported" in run:
        return []
    objectives = run.get("objectives", {})
    if "task" not in run:
        taught = any(name in _TRAIN_THE_POOLER for name in objectives)
        return [POOLER] if any_under(POOLER, arrays) and not taught else []
    task, scored = run["task"]["name"], [fields.get("of") for fields in objectives.values()]
    taught = run["task"].get("weight", 1.0) or task in scored
    unread = [] if taught and task in READ_TEXTS else [POOLER]
    return [p for p in (*unread, *([] if taught else [task])) if any_under(p, arrays)]


def _is_under(parts: Collection[str], name: str) -> bool:
    return any(any_under(part, [name]) for part in parts)


def _with_their_pooler(
    architecture: ModuleType,
    run: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The arrays of a task's head, with its pooler where theirs has it.

    Raises:
      UserError: the pooler has another activation than theirs.
    """
    task = run["task"]["name"]
    own = huggingface_model.own_pooler(task)
    came, wanted = (own, POOLER) if any_under(own, arrays) else (POOLER, own)
    activation = {"pooler_act": "tanh"} | (run["task"] if came == own else {})
    if activation["pooler_act"] != architecture.CLASSIFIER_ACT:
        raise UserError(
            f"the run's pooler has {activation['pooler_act']!r}, a classifier of this architecture "
            f"has {architecture.CLASSIFIER_ACT!r} in transformers: fine-tune an encoder without a "
            f"pooler with --config.task.pooler_act={architecture.CLASSIFIER_ACT}"
        )
    if huggingface_model.has_own_pooler(architecture, task) == (came == own):
        return dict(arrays)
    return {re.sub(f"^{came}/", f"{wanted}/", name): array for name, array in arrays.items()}
