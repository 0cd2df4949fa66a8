"""Task heads in `config.json`: written by exports, read by imports and predictions.

hf_fields         run -> the fields of `config.json` that describe its task
bertjax_sections  HFModel -> `config.task` and `config.data` of a run for predictions and exports
Names and order of classes are in `huggingface/classes.py`.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from bertjax.errors import UserError, nearest
from bertjax.huggingface import architecture as architectures
from bertjax.huggingface import classes as huggingface_classes
from bertjax.huggingface.architecture import attribute, head_class, is_head, reads_pooled
from bertjax.huggingface.model import HFModel
from bertjax.tasks.glue.table import TASKS, glue_task

NO_TASK = "none"
"""The name of a task that leaves out the head."""

_CHOICES = {"race": 4, "swag": 4, "copa": 2}
"""Number of choices of a question, by data set."""

_WITH_CLASSES = ("glue", "ner")
"""Tasks whose heads have one output per class."""

_UNANSWERABLE = {"squad1": False, "squad2": True}

PAIRS = "sequence_pair"
_TEXT_KEYS = {"sequence": ("text",), PAIRS: ("text", "text_pair")}
"""Classifiers of texts outside of GLUE, and the names of the texts in predictions."""

_NAMES = {
    "glue": (*(task.name for task in TASKS), *_TEXT_KEYS),
    "multiple_choice": tuple(_CHOICES),
    "squad": tuple(_UNANSWERABLE),
}
"""The tasks of each head, as `--task` and `finetuning_task` name them."""

_SQUAD_DATA = {
    "doc_stride": 128,
    "max_query_length": 64,
    "max_answer_length": 30,
    "null_threshold": None,
}
"""Fields of `config.data` for question answering, as in `configs/squad.py`."""


def name_of(run: Mapping[str, Any]) -> str:
    """The name of a run's task in options and messages, and in `finetuning_task` of HF configs."""
    task = run["task"]
    if task["name"] == "squad":
        return "squad2" if run["data"]["unanswerable"] else "squad1"
    if "texts" in task:
        return next(name for name, texts in _TEXT_KEYS.items() if len(texts) == len(task["texts"]))
    return task.get("dataset", task["name"])


def hf_fields(architecture: ModuleType, run: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `config.json` that describe a run's task."""
    task = run["task"]
    fields = {"finetuning_task": name_of(run)}
    if task["name"] in _WITH_CLASSES:
        fields |= huggingface_classes.hf_fields(run)
    if task["name"] == "multiple_choice":
        fields["num_choices"] = task["num_choices"]
    word = attribute(architecture, "CLASSIFIER_DROPOUT").get(task["name"])
    return fields | ({word: task["classifier_dropout"]} if word else {})


def bertjax_sections(
    released: HFModel, head: str, name: str, labels: Sequence[str] = ()
) -> dict[str, Any]:
    """The sections `task`, `data` and `imported` of a run, for an imported fine-tuned model.

    Args:
      released: The Hugging Face model.
      head: The task whose head it has.
      name: The name of the task; empty: that of its config.
      labels: Names of the classifier's outputs in their order; empty: those of its config.

    Raises:
      UserError: the config does not specify the task, or the classes are not those of the task.
    """
    task, data, imported = {"name": head}, {}, {}
    if not reads_pooled(head) and attribute(released.architecture, "TOKEN_TRANSFORM"):
        task["token_transform"] = True
    if head == "squad":
        name = _task_name(released, head, name, assumed="squad1")
        return {"task": task, "data": {"unanswerable": _UNANSWERABLE[name], **_SQUAD_DATA}}
    task["classifier_dropout"] = _dropout(released, head)
    if head == "ner":
        task["labels"] = huggingface_classes.token_tags(released, labels)
        data["document_context"] = False
    elif (found := _task_name(released, head, name)) in _TEXT_KEYS:
        task |= {"name": "sequence", "texts": _TEXT_KEYS[found]}
        task |= huggingface_classes.text_classes(released, labels)
    else:
        task["dataset"] = found
    if head == "multiple_choice":
        task["num_choices"] = _num_choices(released, task["dataset"])
    if task["name"] == "glue":
        classes = huggingface_classes.glue_classes(released, glue_task(task["dataset"]), labels)
        task |= {"labels": classes.labels} if classes.labels else {}
        imported |= {"class_order": classes.order} if classes.order else {}
    pooler_act = attribute(released.architecture, "CLASSIFIER_ACT")
    if reads_pooled(head) and pooler_act:
        task["pooler_act"] = pooler_act
    return {"task": task, "data": data, "imported": imported}


def check_options(head: str | None, name: str, labels: Sequence[str]) -> None:
    """Refuses options for a head that the model does not have.

    Args:
      head: The task whose head the model has.
      name: Value of --task; empty: not given.
      labels: Values of --labels; empty: not given.

    Raises:
      UserError: naming the option.
    """
    if head is None and name not in ("", NO_TASK):
        raise UserError(f"--task: got {name}, expected none, as the model has no head of a task")
    if head == "ner" and name not in ("", head, NO_TASK):
        raise UserError(
            f"--task: got {name}, expected ner, the head that the model has; leave --task out, or "
            f"import the encoder alone with --task {NO_TASK}"
        )
    if labels and (head not in _WITH_CLASSES or name == NO_TASK):
        raise UserError(
            f"--labels: got {', '.join(labels)}, expected none; no classifier with classes is "
            "imported, so leave it out"
        )


def _num_choices(released: HFModel, name: str) -> int:
    number = released.config.get("num_choices", _CHOICES[name])
    if not isinstance(number, int) or number < 2:
        raise UserError(
            f"num_choices of config.json: got {number!r}, expected an integer >= 2; fix config.json"
        )
    return number


def _task_name(released: HFModel, head: str, given: str, assumed: str = "") -> str:
    """The name of the task: the given one, that of the config, or the assumed one."""
    name = str(given or released.config.get("finetuning_task") or assumed)
    if not name:
        raise UserError(
            "the model has a classifier, and its config.json does not name the task: specify it, "
            "as in --task rte, or --task sequence (sequence_pair for two texts) for other "
            f"classes, or import the encoder alone with --task {NO_TASK}"
        )
    if name not in _NAMES[head]:
        source = "--task" if given else "finetuning_task of config.json"
        raise UserError(
            f"{source}: got {name!r}, expected a task of the model's head ({head}): "
            f"{nearest(name, _NAMES[head])}; specify it with --task, or import the encoder alone "
            f"with --task {NO_TASK}"
        )
    return name


def _dropout(released: HFModel, head: str) -> float:
    word = attribute(released.architecture, "CLASSIFIER_DROPOUT").get(head)
    dropout = released.config.get(word)
    return default_dropout(released.fields, head) if dropout is None else dropout


def default_dropout(model: Mapping[str, Any], head: str) -> float:
    """The dropout before the head of a task that `config.json` leaves open."""
    return model.get("hidden_dropout_prob", head_class(head).classifier_dropout)


def unused_parts(released: HFModel, name: str) -> tuple[str, ...]:
    """The parts that a model with a task's head does not use; that head, if `name` is "none"."""
    head = architectures.task_of(released.parts)
    if head is None:
        return ()
    if name == NO_TASK:
        return (head,)
    others = [p for p in released.parts if is_head(p) and p != head]
    pooled = reads_pooled(head) and not architectures.has_own_pooler(released.architecture, head)
    unread = [] if pooled else [p for p in released.parts if p == architectures.POOLER]
    return (*unread, *others)
