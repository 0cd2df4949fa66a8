"""Convert the parts of a run that a class of transformers has; list the others with reasons.

to_hf    config, parameters -> HFModel, and the reason for every part that is left out
"""

import json
import re
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.huggingface import architecture as architectures
from bertjax.huggingface import classes, name_map
from bertjax.huggingface import heads as huggingface_heads
from bertjax.huggingface.architecture import ENCODER, POOLER, any_under, attribute
from bertjax.huggingface.model import HFModel
from bertjax.interfaces import Tokenizer
from bertjax.layers.dense import activation
from bertjax.tokenizers.special_tokens import end_of_text

_NO_PLACE = "no class of transformers has it"
_NO_INPUT = "transformers reads texts without it"
_UNTRAINED = "this run has not trained it"

_MERGED = "transformers has one value for it and {}"

_CODE_NAMES = ("model_type", "architectures")
"""Fields of `config.json` whose values are names in the code of a folder."""

_INPUTS = ("knowledge", "document_context")
"""Fields of `config.data` that add inputs to the text, which tokenizers of transformers do not."""


def to_hf(
    model_type: str,
    run: Mapping[str, Any],
    params: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    source: str,
) -> tuple[HFModel, dict[str, str]]:
    """Converts a run, and gives the reason for every part of it that is left out.

    Args:
      model_type: The architecture.
      run: The config of the run, with all fields of its model.
      params: Its parameters by path.
      tokenizer: Its tokenizer.
      source: Names the run in errors.

    Raises:
      UserError: the model cannot be expressed in transformers.
    """
    architecture = architectures.load(model_type)
    imported = run.get("imported", {})
    original = json.loads(imported.get("config", "{}"))
    subtrees = list(dict.fromkeys(path.partition("/")[0] for path in params))
    left_out = dict.fromkeys(_find_untrained(run, params), _UNTRAINED)
    heads = architectures.heads_of_a_class(
        architecture, {*_bare_heads(architecture, run, original), *subtrees} - left_out.keys()
    )
    for part in subtrees:
        if part not in (ENCODER, *heads):
            reasons = attribute(architecture, "NOT_EXPORTED")
            left_out.setdefault(part, reasons.get(part, _NO_PLACE))
    params = {n: array for n, array in params.items() if not _is_under(left_out, n)}
    task = architectures.task_of(heads)
    if task and architectures.reads_pooled(task):
        params = _place_pooler(architecture, run, params)
    elif task:
        _check_transform(architecture, run)
    if task == "glue":
        params = classes.to_hf(run, params)
    config = _config(architecture, model_type, run, heads, tokenizer)
    if original:
        config = _restore_imported_fields(architecture, original, config, heads)
    else:
        config = _special_ids(architecture, tokenizer) | config
    maps = architectures.maps_of(architecture, architectures.parts_of(architecture, params))
    arrays = name_map.to_hf(maps, params, run["model"], source)
    unread = [field for field in _INPUTS if run.get("data", {}).get(field)]
    left_out |= {f"config.data.{field}": _NO_INPUT for field in unread}
    for field, kept in attribute(architecture, "MERGED_FIELDS").items():
        if run["model"][field] != run["model"][kept]:
            left_out[f"config.model.{field}"] = _MERGED.format(kept)
    keeps_names = original and attribute(architecture, "REMOTE_CODE")
    code_names = {name: original.get(name) for name in _CODE_NAMES if keeps_names}
    dtype = imported.get("dtype", "float32")
    return HFModel(model_type, config, arrays, dtype, code_names), left_out


def _special_ids(architecture: ModuleType, tokenizer: Tokenizer) -> dict[str, int | None]:
    """The ids of special tokens in the HF config; transformers has defaults for those left out."""
    ids = {
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.cls_id,
        "eos_token_id": end_of_text(tokenizer),
        "cls_token_id": tokenizer.cls_id,
        "sep_token_id": tokenizer.sep_id,
    }
    return {name: number for name, number in ids.items() if name in architecture.IRRELEVANT}


def _bare_heads(
    architecture: ModuleType, run: Mapping[str, Any], original: Mapping[str, Any]
) -> set[str]:
    """The heads of a run that have no arrays, unless it is an imported encoder without heads."""
    if original.get("architectures") == [architecture.CLASSES[()]]:
        return set()  # The import adds these heads to every run.
    return architectures.heads_without_arrays(architecture) & set(run.get("objectives", ()))


def _config(
    architecture: ModuleType,
    model_type: str,
    run: Mapping[str, Any],
    heads: tuple[str, ...],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """The HF config of a run.

    Raises:
      UserError: the model lacks a field, or has one that transformers does not support.
    """
    _check_fields(architecture, model_type, run["model"])
    _check_activations(architecture, run, heads)
    model = architecture.config(run["model"], heads)
    if model.get("pad_token_id", tokenizer.pad_id) != tokenizer.pad_id:
        raise UserError(
            f"position_offset={run['model']['position_offset']} makes pad_token_id="
            f"{model['pad_token_id']} in transformers, expected {tokenizer.pad_id}, that of the "
            "tokenizer; the run cannot be exported"
        )
    names = {"model_type": model_type, "architectures": [architecture.CLASSES[heads]]}
    task = huggingface_heads.hf_fields(architecture, run) if architectures.task_of(heads) else {}
    return {**model, **names, **task}


def _check_fields(architecture: ModuleType, model_type: str, model: Mapping[str, Any]) -> None:
    """Refuses a model without the fields that the architecture requires."""
    missing = [field for field in architecture.WORDS.values() if field not in model]
    if missing:
        raise UserError(
            f"config.model: got name={model['name']!r} without {', '.join(missing)}, expected the "
            f"fields of model_type {model_type!r}; the run cannot be exported"
        )


def _check_activations(
    architecture: ModuleType, run: Mapping[str, Any], heads: Collection[str]
) -> None:
    """Refuses a head with another activation than in transformers.

    Raises:
      UserError: naming both.
    """
    fixed = attribute(architecture, "HEAD_ACT")
    default = run["model"].get(attribute(architecture, "ACT_FIELD"))
    for head in heads:
        own = run.get("objectives", {}).get(head, {}).get("hidden_act")
        found, expected = own or default, fixed.get(head, default)
        if found == expected:
            continue
        if None in (found, expected) or activation(found) is not activation(expected):
            raise UserError(
                f"the activation of head {head}: got {found!r}, expected {expected!r}, the only "
                f"one that {architecture.CLASSES[tuple(heads)]} has in transformers; set "
                f"hidden_act={expected} in its objective and train again"
            )


def _restore_imported_fields(
    architecture: ModuleType,
    original: Mapping[str, Any],
    config: Mapping[str, Any],
    heads: Collection[str],
) -> dict[str, Any]:
    """Restores the fields of the imported config whose meaning has not changed.

    Such a field keeps its spelling (null for a default, another name of an activation); a field
    that no bertjax model has keeps its value.

    Args:
      architecture: Architecture of the model.
      original: The config of the imported file.
      config: The HF config of the run.
      heads: Heads of the exported class.
    """
    fields = architecture.fields(original, (ENCODER, *heads))
    read = {**original, **architecture.config(fields, heads)}
    for head, word in attribute(architecture, "CLASSIFIER_DROPOUT").items():
        if read.get(word) is None:
            read[word] = huggingface_heads.default_dropout(fields, head)
    differs = {w: v for w, v in config.items() if w not in original or read[w] != v}
    return {**original, **differs}


def _find_untrained(run: Mapping[str, Any], paths: Collection[str]) -> list[str]:
    """Finds the parts that get no gradient from any loss of the run.

    Models of transformers for masked tokens have no pooler, and one with the initial weights is
    worse for fine-tuning than a new one.
    """
    if "imported" in run:
        return []
    objectives = run.get("objectives", {})
    if "task" not in run:
        trained = any(architectures.reads_pooled(name) for name in objectives)
        return [POOLER] if any_under(POOLER, paths) and not trained else []
    task, targets = run["task"]["name"], [fields.get("of") for fields in objectives.values()]
    trained = run["task"].get("weight", 1.0) or task in targets
    unread = [] if trained and architectures.reads_pooled(task) else [POOLER]
    return [p for p in (*unread, *([] if trained else [task])) if any_under(p, paths)]


def _is_under(parts: Collection[str], path: str) -> bool:
    return any(any_under(part, [path]) for part in parts)


def _check_transform(architecture: ModuleType, run: Mapping[str, Any]) -> None:
    found = run["task"].get("token_transform", False)
    expected = attribute(architecture, "TOKEN_TRANSFORM")
    if found != expected:
        raise UserError(
            f"config.task.token_transform: got {found}, expected {expected}, as in the head of "
            "this architecture in transformers; fine-tune with "
            f"--config.task.token_transform={expected}"
        )


def _place_pooler(
    architecture: ModuleType,
    run: Mapping[str, Any],
    params: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Puts the pooler that a task's head reads where transformers has it: encoder or head.

    Raises:
      UserError: the pooler has another activation than in transformers.
    """
    task = run["task"]["name"]
    own = architectures.own_pooler(task)
    found, other = (own, POOLER) if any_under(own, params) else (POOLER, own)
    act = (run["task"] if found == own else {}).get("pooler_act", "tanh")
    expected = attribute(architecture, "CLASSIFIER_ACT")
    if expected and act != expected:
        raise UserError(
            f"the activation of the run's pooler: got {act!r}, expected {expected!r}, the one of "
            "classifiers of this architecture in transformers; fine-tune an encoder without a "
            f"pooler with --config.task.pooler_act={expected}"
        )
    if architectures.has_own_pooler(architecture, task) == (found == own):
        return dict(params)
    return {re.sub(f"^{found}/", f"{other}/", path): array for path, array in params.items()}
