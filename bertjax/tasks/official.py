"""Official metrics of a task, for prediction files of any model.

`SCORERS` has a function for each task; another task is another line there. Measures are fractions,
1 is perfect, but for SQuAD's, which are percentages as its own scripts print them; counts are named
so.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from bertjax.errors import UserError, nearest
from bertjax.io import json_fields
from bertjax.metrics import answers, classification, entities
from bertjax.tasks.glue import files as glue_files
from bertjax.tasks.glue import predictions as glue_predictions
from bertjax.tasks.glue.table import TASKS, GlueTask
from bertjax.tasks.multiple_choice import files as multiple_choice_files
from bertjax.tasks.multiple_choice import predictions as multiple_choice_predictions
from bertjax.tasks.multiple_choice.files import Choices
from bertjax.tasks.ner import conll as ner_conll
from bertjax.tasks.ner.conll import Sentence
from bertjax.tasks.squad import files as squad_files

Scores = dict[str, Any]
"""Measures and counts by name; those of parts, such as types of entities, are a level deeper."""

Scorer = Callable[[str | None, str], Scores]
"""(references, predictions), both files, to scores."""


def score(task: str, references: str | None, predictions: str) -> Scores:
    """Scores predictions of a task.

    Args:
      task: One of `SCORERS`.
      references: The file, or of RACE the folder, of what is right; None where predictions have it.
      predictions: The file of predictions.

    Raises:
      UserError: there is no such task, or the files do not fit each other.
    """
    if task not in SCORERS:
        raise UserError(f"no task {task!r} to score: {nearest(task, SCORERS)}")
    return SCORERS[task](references, predictions)


def _glue(task: GlueTask, references: str | None, predictions: str) -> Scores:
    """The metrics of GLUE's table; examples are matched by their index."""
    examples = glue_files.read_file(_needed(task.name, references), task)
    if examples.labels is None:
        raise UserError(
            f"{references} has no labels: expected a file that has, such as the released dev split"
        )
    known = glue_predictions.read(predictions, task)
    found = np.array(_matched(references, examples.indices, predictions, known))
    scores = {name: getattr(classification, name)(found, examples.labels) for name in task.metrics}
    return scores | {"examples": len(examples)}


def _conll2003(references: str | None, predictions: str) -> Scores:
    """As `conlleval` has it, but that lines which begin a document are not counted as words."""
    predicted = ner_conll.read(predictions, ner_conll.AS_IT_IS)
    if references is None:
        wanted = [_tags_before_last(predictions, sentence) for sentence in predicted]
    else:
        sentences = ner_conll.read(references, ner_conll.AS_IT_IS)
        _check_same_words(references, sentences, predictions, predicted)
        wanted = [sentence.tags for sentence in sentences]
    tags = [sentence.tags for sentence in predicted]
    kinds = entities.count_by_type(tags, wanted)
    scores: Scores = entities.score(tags, wanted)
    scores["words"] = sum(map(len, wanted))
    scores["entities"] = sum(found.reference for found in kinds.values())
    scores["types"] = {
        kind: found.scores() | {"entities": found.reference} for kind, found in kinds.items()
    }
    return scores


def _race(references: str | None, predictions: str) -> Scores:
    """The share of right answers, of all questions and of each level."""
    choices = multiple_choice_files.read_race_split(_needed("race", references))
    right = _right(references, choices, predictions)
    scores: Scores = {"accuracy": float(right.mean()), "questions": len(choices)}
    levels = np.array(choices.levels)
    scores["levels"] = {
        level: {"accuracy": float(right[levels == level].mean()), "questions": count}
        for level in multiple_choice_files.LEVELS
        if (count := int((levels == level).sum()))
    }
    return scores


def _swag(references: str | None, predictions: str) -> Scores:
    """The share of right answers."""
    choices = multiple_choice_files.read_swag_file(_needed("swag", references))
    right = _right(references, choices, predictions)
    return {"accuracy": float(right.mean()), "questions": len(choices)}


def _squad_of_any_version(references: str | None, predictions: str) -> Scores:
    """By the rules of the version that the references are; `rules` names the task."""
    needed = _needed("squad", references)
    squad_files.read(needed, on_mismatch="keep")
    name = "squad2" if squad_files.is_version_2(needed) else "squad1"
    return {"rules": name} | SCORERS[name](references, predictions)


def _squad(unanswerable: bool, references: str | None, predictions: str) -> Scores:
    """In percent, as the official scripts print them."""
    name = "squad2" if unanswerable else "squad1"
    questions = squad_files.read(_needed(name, references), on_mismatch="keep")
    found = json_fields.load_json(
        pathlib.Path(predictions), "predictions of SQuAD", distinct_keys=True
    )
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise UserError(f'{predictions}: expected {{"QUESTION_ID": "answer", ...}}; write it so')
    rules = answers.score_squad_v1
    if unanswerable:
        rules = answers.score_squad_v2
    return rules(found, questions.references())


SCORERS: Mapping[str, Scorer] = {
    **{task.name: functools.partial(_glue, task) for task in TASKS},
    "squad": _squad_of_any_version,
    "squad1": functools.partial(_squad, False),
    "squad2": functools.partial(_squad, True),
    "conll2003": _conll2003,
    "race": _race,
    "swag": _swag,
}
"""What scores each task."""


def _needed(task: str, references: str | None) -> str:
    if references is None:
        raise UserError(
            f"{task} requires --references: the released data that the predictions are of"
        )
    return references


def _matched(
    references: str, wanted: Sequence[str], predictions: str, known: Mapping[str, Any]
) -> list[Any]:
    """The prediction of each example, all of which must have one and no other."""
    missing = [identity for identity in wanted if identity not in known]
    if missing:
        raise UserError(
            f"{predictions} has no prediction for {len(missing)} of {len(wanted)} examples of "
            f"{references}, the first of them {missing[0]!r}; add them, or score another split"
        )
    unknown = known.keys() - set(wanted)
    if unknown:
        first = next(identity for identity in known if identity in unknown)
        raise UserError(
            f"{predictions} has {len(unknown)} predictions for what is not in {references}, the "
            f"first of them {first!r}; remove them, or score another split"
        )
    if len(known) != len(wanted):
        raise UserError(f"{references} calls two examples the same; expected different indices")
    return [known[identity] for identity in wanted]


def _right(references: str, choices: Choices, predictions: str) -> Bool[np.ndarray, " n"]:
    """Which questions were answered rightly."""
    if choices.answers is None:
        raise UserError(f"{references} has no answers: expected a split that has, such as dev")
    known = multiple_choice_predictions.read(predictions)
    return np.array(_matched(references, choices.ids, predictions, known)) == choices.answers


def _tags_before_last(path: str, sentence: Sentence) -> list[str]:
    """The right tags of a file that has them before its last column."""
    for line, columns in zip(sentence.lines, sentence.between, strict=True):
        if not columns or not ner_conll.is_tag(columns[-1]):
            raise UserError(
                f"{path}:{line}: no tag before the last column: expected the right tag and then "
                f"the "
                "predicted one; or name the file of the right ones with --references"
            )
    return [columns[-1] for columns in sentence.between]


def _check_same_words(
    references: str, sentences: list[Sentence], predictions: str, predicted: list[Sentence]
) -> None:
    for wanted, found in zip(sentences, predicted, strict=False):
        for number, word in enumerate(found.words):
            if wanted.words[number : number + 1] != (word,):
                there = f"{wanted.words[number]!r}" if number < len(wanted) else "a sentence's end"
                line = wanted.lines[min(number, len(wanted) - 1)]
                raise UserError(
                    f"{predictions}:{found.lines[number]}: {word!r}, where {references}:{line} has "
                    f"{there}: expected the same sentences in the same order"
                )
        if len(found) < len(wanted):
            raise UserError(
                f"{predictions}:{found.lines[-1]}: the sentence ends, where {references}:"
                f"{wanted.lines[len(found)]} continues with {wanted.words[len(found)]!r}: "
                f"expected the "
                "same sentences in the same order"
            )
    if len(sentences) != len(predicted):
        raise UserError(
            f"{predictions} has {len(predicted)} sentences, {references} has {len(sentences)}: "
            "expected the same sentences in the same order"
        )
