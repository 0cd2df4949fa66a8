"""Task heads in `config.json`: written by exports, read by imports and predictions.

hf_fields         run -> the fields of `config.json` that describe its task
bertjax_sections  Released -> `config.task` and `config.data` of a run for predictions and exports
Names and order of classes are in `huggingface/classes.py`.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from bertjax.errors import UserError, nearest
from bertjax.huggingface import architecture as architectures
from bertjax.huggingface import classes as huggingface_classes
from bertjax.huggingface.architecture import attribute, head_class, is_head, reads_pooled
from bertjax.huggingface.model import Released
from bertjax.tasks.glue.table import TASKS, glue_task

NO_TASK = "none"
"""Leaves a task's head behind."""

_CHOICES = {"race": 4, "swag": 4}
"""Answers of each question, by data set."""

_WITH_CLASSES = ("glue", "ner")
"""Tasks whose heads have an output for each of several classes."""

_UNANSWERABLE = {"squad1": False, "squad2": True}

_NAMES = {
    "glue": tuple(task.name for task in TASKS),
    "multiple_choice": tuple(_CHOICES),
    "squad": tuple(_UNANSWERABLE),
}
"""The tasks of each head, as `--task` and `finetuning_task` name them."""

_ASKED_AS = {
    "doc_stride": 128,
    "max_query_length": 64,
    "max_answer_length": 30,
    "null_threshold": None,
}
"""How a model that answers questions reads them, as in `configs/squad.py`."""


def name_of(run: Mapping[str, Any]) -> str:
    """What a task is called to the user, and as `finetuning_task` in their config."""
    task = run["task"]
    if task["name"] == "squad":
        return "squad2" if run["data"]["unanswerable"] else "squad1"
    return task.get("dataset", task["name"])


def hf_fields(architecture: ModuleType, run: Mapping[str, Any]) -> dict[str, Any]:
    """What their config says of a run's task."""
    task = run["task"]
    words = {"finetuning_task": name_of(run)}
    if task["name"] in _WITH_CLASSES:
        words |= huggingface_classes.hf_fields(run)
    if task["name"] == "multiple_choice":
        words["num_choices"] = task["num_choices"]
    word = attribute(architecture, "CLASSIFIER_DROPOUT").get(task["name"])
    return words | ({word: task["classifier_dropout"]} if word else {})


def bertjax_sections(
    released: Released, head: str, name: str, labels: Sequence[str] = ()
) -> dict[str, Any]:
    """The sections `task`, `data` and `imported` of the run that a fine-tuned model becomes.

    Args:
      released: A model of theirs.
      head: Which task's head it has.
      name: What the task is called; empty: as its config says.
      labels: Names of the classifier's outputs in their order; empty: as its config says.

    Raises:
      UserError: the config does not tell enough, or classes are not those of the task.
    """
    task, data, imported = {"name": head}, {}, {}
    if head == "squad":
        name = _task_name(released, head, name, assumed="squad1")
        return {"task": task, "data": {"unanswerable": _UNANSWERABLE[name], **_ASKED_AS}}
    task["classifier_dropout"] = _dropout(released, head)
    if head == "ner":
        task["labels"] = huggingface_classes.of_words(released, labels)
        data["document_context"] = False
    else:
        task["dataset"] = _task_name(released, head, name)
    if head == "multiple_choice":
        task["num_choices"] = _num_choices(released, task["dataset"])
    if head == "glue":
        classes = huggingface_classes.of_texts(released, glue_task(task["dataset"]), labels)
        task |= {"labels": classes.labels} if classes.labels else {}
        imported |= {"class_order": classes.order} if classes.order else {}
    if reads_pooled(head):
        task["pooler_act"] = attribute(released.architecture, "CLASSIFIER_ACT")
    return {"task": task, "data": data, "imported": imported}


def check_statements(head: str | None, name: str, labels: Sequence[str]) -> None:
    """Refuses what a user states about a head that the model does not have.

    Args:
      head: The task whose head the model has.
      name: Of the task, as the user gives it; empty: not given.
      labels: Names of its classes, as the user gives them; empty: not given.

    Raises:
      UserError: naming the option.
    """
    if head is None and name not in ("", NO_TASK):
        raise UserError(f"--task: got {name}, expected none; the model has no head of a task")
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


def _num_choices(released: Released, name: str) -> int:
    number = released.config.get("num_choices", _CHOICES[name])
    if not isinstance(number, int) or number < 2:
        raise UserError(
            f"num_choices of config.json: got {number!r}, expected an integer >= 2; fix config.json"
        )
    return number


def _task_name(released: Released, head: str, given: str, assumed: str = "") -> str:
    """The name of the task: as the user gives it, as the config has it, or as it is assumed."""
    name = str(given or released.config.get("finetuning_task") or assumed)
    if not name:
        raise UserError(
            "the model has a classifier, and its config.json does not say of which task: name it, "
            f"as in --task rte, or leave it behind with --task {NO_TASK}"
        )
    if name not in _NAMES[head]:
        source = "--task" if given else "finetuning_task of config.json"
        raise UserError(
            f"{source}: got {name!r}, expected a task of the model's head ({head}): "
            f"{nearest(name, _NAMES[head])}; name it with --task, or import the encoder alone with "
            f"--task {NO_TASK}"
        )
    return name


def _dropout(released: Released, head: str) -> float:
    word = attribute(released.architecture, "CLASSIFIER_DROPOUT").get(head)
    dropout = released.config.get(word)
    return default_dropout(released.fields, head) if dropout is None else dropout


def default_dropout(model: Mapping[str, Any], head: str) -> float:
    """The dropout before the head of a task that `config.json` leaves open."""
    return model.get("hidden_dropout_prob", head_class(head).classifier_dropout)


def superfluous(released: Released, name: str) -> tuple[str, ...]:
    """The parts that have no use beside a task's head, or that head itself, if it is unwanted."""
    head = architectures.task_of(released.parts)
    if head is None:
        return ()
    if name == NO_TASK:
        return (head,)
    beside = [p for p in released.parts if is_head(p) and p != head]
    pooled = reads_pooled(head) and not architectures.has_own_pooler(released.architecture, head)
    unread = [] if pooled else [p for p in released.parts if p == architectures.POOLER]
    return (*unread, *beside)
