"""Class names of classifiers: `id2label` and `label2id` of Hugging Face's `config.json`.

In a run, the classes of a GLUE task have the order of `tasks/glue/table.py`, whatever their order
in transformers. An import with other names keeps them as `config.task.labels`, in the run's order;
an import with another order keeps that as `config.imported.class_order`: for each class of the run
the index of its output in transformers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.huggingface.model import HFModel
from bertjax.metrics.sequences import PROBLEM_TYPES, REGRESSION, SINGLE_LABEL
from bertjax.tasks.glue.table import GlueTask, glue_task

_FIX = "fix config.json, or specify the names with --labels"


def read(hf_config: Mapping[str, Any], num_outputs: int) -> tuple[str, ...]:
    """Reads the names of the outputs in their order.

    Args:
      hf_config: The `config.json`.
      num_outputs: Number of outputs of the classifier.

    Returns:
      A name for each output; none where `id2label` is absent or holds only the placeholders that
      transformers fills in: LABEL_0, LABEL_1 and so on.

    Raises:
      UserError: the names do not fit the outputs, or contradict `label2id` or `num_labels`.
    """
    if hf_config.get("num_labels", num_outputs) != num_outputs:
        raise UserError(
            f"num_labels of config.json: got {hf_config['num_labels']!r}, expected {num_outputs}, "
            f"the number of the classifier's outputs; {_FIX}"
        )
    id2label = hf_config.get("id2label")
    if id2label is None:
        return ()
    numbers = [str(number) for number in range(num_outputs)]
    given = {str(key): str(name) for key, name in _items(hf_config, "id2label")}
    if given.keys() != set(numbers):
        raise UserError(
            f"id2label of config.json: got {id2label}, expected a name for each of the "
            f"classifier's {num_outputs} outputs, numbered from 0; {_FIX}"
        )
    names = tuple(given[number] for number in numbers)
    _check_label2id(hf_config, names)
    return () if names == placeholders(num_outputs) else names


def placeholders(num_outputs: int) -> tuple[str, ...]:
    """The names that transformers gives to outputs without names."""
    return tuple(f"LABEL_{number}" for number in range(num_outputs))


def _check_label2id(hf_config: Mapping[str, Any], names: Sequence[str]) -> None:
    """Compares the names that both tables have: `label2id` often contains placeholders as well."""
    numbered = {(name, str(number)) for number, name in enumerate(names)}
    for name, number in _items(hf_config, "label2id"):
        if name in names and (name, str(number)) not in numbered:
            raise UserError(
                f"label2id of config.json: got {name}={number!r}, expected {names.index(name)} as "
                f"in id2label; {_FIX}"
            )


def _items(hf_config: Mapping[str, Any], field: str) -> list[tuple[str, Any]]:
    table = hf_config.get(field) or {}
    if not isinstance(table, Mapping):
        raise UserError(f"{field} of config.json: got {table!r}, expected an object; {_FIX}")
    return list(table.items())


_CLASSIFIER = ("glue/classifier/dense/kernel", "glue/classifier/dense/bias")
"""The parameters whose last axis is the classes."""

_WITHOUT_HEAD = "import the encoder alone with --task none"


@dataclasses.dataclass(frozen=True)
class Classes:
    """The classes of an imported GLUE classifier.

    Attributes:
      labels: Their names in the run's order; empty if they are those of the table.
      order: For each class of the run the index of its output in transformers; empty if both
        orders are the same.
    """

    labels: tuple[str, ...]
    order: tuple[int, ...]


def glue_classes(released: HFModel, task: GlueTask, given: Sequence[str]) -> Classes:
    """The classes of a text classifier.

    A run has the classes of a GLUE task in GLUE's order: without their names, the predictions of a
    model with another order would be wrong.

    Args:
      released: The model.
      task: Its task.
      given: The names of its outputs in their order; empty: those of its config.json.

    Raises:
      UserError: the outputs are not those of the task, or their order is not known.
    """
    _check_problem_type(released, task)
    num_outputs = _num_outputs(released, "glue")
    if num_outputs != task.num_labels:
        raise UserError(
            f"outputs of the classifier: got {num_outputs}, expected {task.num_labels} for "
            f"{task.name}; specify its task with --task, or {_WITHOUT_HEAD}"
        )
    if not task.labels:
        if given:
            raise UserError(
                f"--labels: got {_join(given)}, expected none for {task.name}, a regression; "
                "leave it out"
            )
        return Classes((), ())
    names = tuple(given) or _read(released, num_outputs, task.names or task.labels)
    try:
        order = task.order(names)
    except UserError as error:
        raise UserError(f"{error}; {_remedy(task.names or task.labels)}") from None
    labels = tuple(names[number] for number in order)
    is_same = order == tuple(range(num_outputs))
    return Classes(() if labels == task.labels else labels, () if is_same else order)


def text_classes(released: HFModel, given: Sequence[str]) -> dict[str, Any]:
    """The fields `labels` and `problem_type` of a text classifier for a task outside GLUE.

    Without a `problem_type`, a classifier with one output is a regression, and one with several has
    one label per text, as in transformers.

    Raises:
      UserError: the problem type is unknown, or there is not a name for each output.
    """
    num_outputs = _num_outputs(released, "glue")
    kind = released.config.get("problem_type") or (REGRESSION if num_outputs == 1 else SINGLE_LABEL)
    if kind not in PROBLEM_TYPES:
        raise UserError(
            f"problem_type of config.json: got {kind!r}, expected one of "
            f"{', '.join(PROBLEM_TYPES)}; fix config.json, or {_WITHOUT_HEAD}"
        )
    if kind == REGRESSION:
        if num_outputs != 1 or given:
            raise UserError(
                f"outputs of the regression: got {num_outputs} and the names {_join(given)}, "
                f"expected one output without a name; fix config.json, or {_WITHOUT_HEAD}"
            )
        return {"labels": (), "problem_type": kind}
    names = tuple(given) or read(released.config, num_outputs) or placeholders(num_outputs)
    if len(set(names)) != num_outputs:
        raise UserError(
            f"classes of the classifier: got {_join(names)}, expected {num_outputs} different "
            f"names; {_remedy(placeholders(num_outputs))}"
        )
    return {"labels": names, "problem_type": kind}


def token_tags(released: HFModel, given: Sequence[str]) -> tuple[str, ...]:
    """The tags of a token classifier, in the order of its outputs: of entities, or any classes.

    Raises:
      UserError: there is not a different name for each output, or config.json has no names.
    """
    example = ("O", "B-PER", "I-PER")
    num_outputs = _num_outputs(released, "ner")
    names = tuple(given) or _read(released, num_outputs, example)
    if not len(set(names)) == len(names) == num_outputs:
        raise UserError(
            f"tags of the token classifier: got {_join(names)}, expected {num_outputs} different "
            f"tags such as {_join(example)}; {_remedy(example)}"
        )
    return names


def _remedy(example: Sequence[str]) -> str:
    return (
        "specify the names of the classifier's outputs in their order, as in --labels "
        f"{' '.join(example)}, or {_WITHOUT_HEAD}"
    )


def _join(names: Sequence[str]) -> str:
    return ", ".join(names)


def _read(released: HFModel, num_outputs: int, example: Sequence[str]) -> tuple[str, ...]:
    names = read(released.config, num_outputs)
    if not names:
        raise UserError(
            "config.json does not name the classes: got "
            f"{_join(placeholders(num_outputs))}, expected names such as "
            f"{_join(example)}; {_remedy(example)}"
        )
    return names


def _num_outputs(released: HFModel, head: str) -> int:
    """The number of the classifier's outputs.

    Raises:
      UserError: its bias is missing.
    """
    pairs = released.architecture.parts()[head]
    bias = next(each.hf for each in pairs if each.bertjax == f"{head}/classifier/dense/bias")
    if bias not in released.arrays:
        raise UserError(f"the weights lack {bias}, the bias of the classifier: restore the file")
    return len(released.arrays[bias])


def _check_problem_type(released: HFModel, task: GlueTask) -> None:
    given, expected = released.config.get("problem_type"), task.problem_type
    if given not in (None, expected):
        raise UserError(
            f"problem_type of config.json: got {given!r}, expected {expected!r} for {task.name}; "
            f"{_WITHOUT_HEAD}"
        )


def hf_fields(run: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `config.json` with the names of the outputs of a run's classifier."""
    if run["task"]["name"] == "ner":
        return _label_maps(run["task"]["labels"])
    if "texts" in run["task"]:
        names = run["task"].get("labels", ())
        kind = run["task"].get("problem_type", SINGLE_LABEL if names else REGRESSION)
        return {"problem_type": kind, **_label_maps(names or placeholders(1))}
    task = glue_task(run["task"]["dataset"])
    names = task.class_names(run["task"].get("labels", ()))
    if order := _order(run):
        names = [names[number] for number in np.argsort(order)]
    return {
        "problem_type": task.problem_type,
        **_label_maps(names or placeholders(1)),
    }


def _label_maps(labels: Sequence[str]) -> dict[str, Any]:
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def to_bertjax(run: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Reorders the classes of the classifier from the order of transformers to that of the run."""
    return _reorder(arrays, _order(run))


def to_hf(run: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Reorders the classes of the classifier from the order of the run to that of transformers."""
    return _reorder(arrays, np.argsort(_order(run)).tolist())


def _order(run: Mapping[str, Any]) -> list[int]:
    """`class_order` of an imported run, empty if both orders are the same."""
    return list(run["imported"].get("class_order", ())) if "imported" in run else []


def _reorder(arrays: Mapping[str, np.ndarray], order: Sequence[int]) -> dict[str, np.ndarray]:
    moved = {name: arrays[name][..., list(order)] for name in _CLASSIFIER} if order else {}
    return {**arrays, **moved}
