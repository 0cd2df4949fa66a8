"""A task's head as a model's `config.json` tells of it: what is exported says, and imports ask.

their_words   run -> the part of their config that is the task's
our_sections  Released -> `config.task` and `config.data` of a run that can be asked and exported
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from bertjax.compat import huggingface
from bertjax.compat.huggingface import READ_TEXTS, Released
from bertjax.data.conll import is_tag
from bertjax.data.glue_table import glue_task
from bertjax.errors import UserError, nearest

NO_TASK = "none"
"""Leaves a task's head behind."""

_CHOICES = {"race": 4, "swag": 4}
"""Answers of each question, by data set."""

_UNANSWERABLE = {"squad1": False, "squad2": True}

_ASKED_AS = {
    "doc_stride": 128,
    "max_query_length": 64,
    "max_answer_length": 30,
    "null_threshold": None,
}
"""How a model that answers questions reads them, as in `configs/squad.py`."""


def name_of(run: Mapping[str, Any]) -> str:
    """What a task is called to a person, and as `finetuning_task` in their config."""
    task = run["task"]
    if task["name"] == "squad":
        return "squad2" if run["data"]["unanswerable"] else "squad1"
    return task.get("dataset", task["name"])


def their_words(architecture: ModuleType, run: Mapping[str, Any]) -> dict[str, Any]:
    """What their config says of a run's task."""
    task = run["task"]
    words = {"finetuning_task": name_of(run), **_classes(task)}
    word = architecture.CLASSIFIER_DROPOUT.get(task["name"])
    return words | ({word: task["classifier_dropout"]} if word else {})


def _classes(task: Mapping[str, Any]) -> dict[str, Any]:
    if task["name"] == "glue":
        labels = glue_task(task["dataset"]).labels
        kind = "single_label_classification" if labels else "regression"
        return {"problem_type": kind, **_numbered(labels or ("LABEL_0",))}
    if task["name"] == "ner":
        return _numbered(task["labels"])
    return {"num_choices": task["num_choices"]} if task["name"] == "multiple_choice" else {}


def _numbered(labels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def our_sections(released: Released, head: str, name: str) -> dict[str, Any]:
    """The sections `task` and `data` of the run that a fine-tuned model becomes.

    Args:
      released: A model of theirs.
      head: Which task's head it has.
      name: What the task is called; empty: as its config says.

    Raises:
      UserError: the config does not tell enough, or classes are not those of the task.
    """
    name = name or released.config.get("finetuning_task") or ""
    task, data = {"name": head}, {}
    if head == "squad":
        data = {"unanswerable": _of(name or "squad1", _UNANSWERABLE), **_ASKED_AS}
        return {"task": task, "data": data}
    task["classifier_dropout"] = _dropout(released, head)
    if head == "ner":
        task["labels"], data["document_context"] = _tags(released), False
    else:
        task["dataset"] = _named(name)
    if head == "multiple_choice":
        task["num_choices"] = released.config.get("num_choices", _of(name, _CHOICES))
    if head == "glue":
        _check_classes(released, name)
    if head in READ_TEXTS:
        task["pooler_act"] = released.architecture.CLASSIFIER_ACT
    return {"task": task, "data": data}


def _of(name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise UserError(
            f"--task {name}: the model's head is none of that task: {nearest(name, known)}; or "
            f"leave it behind with --task {NO_TASK}"
        )
    return known[name]


def _named(name: str) -> str:
    if not name:
        raise UserError(
            "the model has a classifier, and its config.json does not say of which task: name it, "
            f"as in --task rte, or leave it behind with --task {NO_TASK}"
        )
    return name


def _dropout(released: Released, head: str) -> float:
    word = released.architecture.CLASSIFIER_DROPOUT.get(head)
    dropout = released.config.get(word)
    return released.fields["hidden_dropout_prob"] if dropout is None else dropout


def _labels(released: Released) -> list[str]:
    """Their classes in the order of their numbers."""
    labels = released.config.get("id2label") or {}
    return [label for _, label in sorted(labels.items(), key=lambda item: int(item[0]))]


def _tags(released: Released) -> list[str]:
    labels = _labels(released)
    wrong = [label for label in labels if not is_tag(label)]
    if wrong or not labels:
        raise UserError(
            f"config.json has the classes {', '.join(labels) or 'of nothing'}; wanted tags such as "
            "O, B-PER and I-PER: mend its id2label, or leave the classifier behind with --task "
            f"{NO_TASK}"
        )
    return labels


def _check_classes(released: Released, name: str) -> None:
    wanted, said = glue_task(name).labels, _labels(released)
    if said != list(wanted) and sorted(said) == sorted(wanted):
        raise UserError(
            f"config.json has the classes of {name} as {', '.join(said)}; bertjax has them as "
            f"{', '.join(wanted)}: reorder its classifier, or leave it behind with --task "
            f"{NO_TASK}"
        )


def superfluous(released: Released, name: str) -> tuple[str, ...]:
    """The parts that have no use beside a task's head, or that head itself, if it is unwanted."""
    head = huggingface.task_of(released.parts)
    if head is None:
        return ()
    if name == NO_TASK:
        return (head,)
    beside = [p for p in released.parts if huggingface.is_head(p) and p != head]
    pooled = head in READ_TEXTS and not huggingface.has_own_pooler(released.architecture, head)
    unread = [] if pooled else [p for p in released.parts if p == huggingface.POOLER]
    return (*unread, *beside)
