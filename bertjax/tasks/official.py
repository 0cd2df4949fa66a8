"""Score prediction files of any model with the official metrics of a task.

`SCORERS` maps task names to functions. Metrics are fractions in [0, 1], except those of SQuAD,
which are percentages as in its official scripts.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from bertjax.errors import UserError, nearest
from bertjax.io import files
from bertjax.metrics import answers, classification, entities
from bertjax.tasks.glue import files as glue_files
from bertjax.tasks.glue import predictions as glue_predictions
from bertjax.tasks.glue.table import TASKS, GlueTask
from bertjax.tasks.multilingual import files as multilingual_files
from bertjax.tasks.multilingual import predictions as multilingual_predictions
from bertjax.tasks.multilingual import table as multilingual_table
from bertjax.tasks.multilingual.table import MultilingualTask
from bertjax.tasks.multiple_choice import files as multiple_choice_files
from bertjax.tasks.multiple_choice import predictions as multiple_choice_predictions
from bertjax.tasks.multiple_choice.files import Choices
from bertjax.tasks.ner import conll as ner_conll
from bertjax.tasks.ner.conll import Sentence
from bertjax.tasks.squad import files as squad_files
from bertjax.tasks.superglue import files as superglue_files
from bertjax.tasks.superglue import table as superglue_table
from bertjax.tasks.superglue.table import SuperGlueTask

Scores = dict[str, Any]
"""Metrics and counts by name; breakdowns, such as by entity type, are nested one level deeper."""

Scorer = Callable[[str | None, str], Scores]
"""A function of (references file, predictions file) that returns scores."""


def score(task: str, references: str | None, predictions: str) -> Scores:
    """Scores predictions of a task.

    Args:
      task: A key of `SCORERS`.
      references: The released file with the correct answers, for RACE the folder; None if the
        predictions file has them (CoNLL-2003).
      predictions: The file of predictions.

    Raises:
      UserError: the task is unknown, a file is malformed, or the files do not match.
    """
    if task not in SCORERS:
        raise UserError(f"unknown task {task!r}: {nearest(task, SCORERS)}")
    return SCORERS[task](references, predictions)


def _glue(task: GlueTask, references: str | None, predictions: str) -> Scores:
    """Scores GLUE predictions; examples are matched by index."""
    examples = glue_files.read_file(_require_references(task.name, references), task)
    if examples.labels is None:
        raise UserError(
            f"no labels in {references}: expected a labelled file, such as the released dev split"
        )
    known = glue_predictions.read(predictions, task)
    found = np.array(_match_predictions(references, examples.indices, predictions, known))
    scores = {name: getattr(classification, name)(found, examples.labels) for name in task.metrics}
    return scores | {"examples": len(examples)}


def _superglue(task: SuperGlueTask, references: str | None, predictions: str) -> Scores:
    """Scores SuperGLUE predictions; examples are matched by idx."""
    needed = _require_references(task.name, references)
    rows = superglue_files.read_file(needed, task).rows
    answers = superglue_files.reference_split(needed, task).answers
    if rows[0].label is None:
        raise UserError(f"no labels in {needed}: expected a labelled file, such as val.jsonl")
    known = superglue_files.read_predictions(predictions, answers)
    expected = list(dict.fromkeys(row.key for row in rows))
    _match_predictions(
        needed,
        ["/".join(map(str, key)) for key in expected],
        predictions,
        {"/".join(map(str, key)): value for key, value in known.items()},
    )
    return answers.score(rows, known) | {"examples": len(expected)}


def _multilingual(task: MultilingualTask, references: str | None, predictions: str) -> Scores:
    """Accuracy by language and their mean; examples are matched by language and number."""
    needed = _require_references(task.name, references)
    some, labels = multilingual_files.read_references(needed, task)
    pairs = zip(some.languages, some.examples.indices, strict=True)
    known = multilingual_predictions.read(predictions, labels)
    found = _match_predictions(needed, ["/".join(pair) for pair in pairs], predictions, known)
    scores: Scores = multilingual_predictions.score(some.languages, found, some.examples.labels)
    return scores | {"examples": len(some)}


def _conll2003(references: str | None, predictions: str) -> Scores:
    """Scores NER as `conlleval`, except that -DOCSTART- lines are not counted as words."""
    predicted = ner_conll.read(predictions, ner_conll.AS_IT_IS)
    if references is None:
        expected = [_tags_before_last(sentence) for sentence in predicted]
    else:
        sentences = ner_conll.read(references, ner_conll.AS_IT_IS)
        _check_same_words(references, sentences, predictions, predicted)
        expected = [sentence.tags for sentence in sentences]
    tags = [sentence.tags for sentence in predicted]
    kinds = entities.count_by_type(tags, expected)
    scores: Scores = entities.score(tags, expected)
    scores["words"] = sum(map(len, expected))
    scores["entities"] = sum(found.reference for found in kinds.values())
    scores["types"] = {
        kind: found.scores() | {"entities": found.reference} for kind, found in kinds.items()
    }
    return scores


def _race(references: str | None, predictions: str) -> Scores:
    """Accuracy over all questions and per level."""
    choices = multiple_choice_files.read_race_split(_require_references("race", references))
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
    """Accuracy over all questions."""
    choices = multiple_choice_files.read_swag_file(_require_references("swag", references))
    right = _right(references, choices, predictions)
    return {"accuracy": float(right.mean()), "questions": len(choices)}


def _squad_of_any_version(references: str | None, predictions: str) -> Scores:
    """Scores SQuAD by the version of the references file, which the score `rules` names."""
    needed = _require_references("squad", references)
    squad_files.read(needed, on_mismatch="keep")
    name = "squad2" if squad_files.is_version_2(needed) else "squad1"
    return {"rules": name} | SCORERS[name](references, predictions)


def _squad(unanswerable: bool, references: str | None, predictions: str) -> Scores:
    """Exact match and F1 in percent, as in the official scripts."""
    name = "squad2" if unanswerable else "squad1"
    questions = squad_files.read(_require_references(name, references), on_mismatch="keep")
    found = files.load_json(pathlib.Path(predictions), "predictions of SQuAD", distinct_keys=True)
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise UserError(
            f'{predictions}: expected a JSON object {{"QUESTION_ID": "answer", ...}} of strings'
        )
    rules = answers.score_squad_v1
    if unanswerable:
        rules = answers.score_squad_v2
    return rules(found, questions.references())


SCORERS: Mapping[str, Scorer] = {
    **{task.name: functools.partial(_glue, task) for task in TASKS},
    **{
        f"superglue_{task.name}": functools.partial(_superglue, task)
        for task in superglue_table.TASKS
    },
    **{task.name: functools.partial(_multilingual, task) for task in multilingual_table.TASKS},
    "squad": _squad_of_any_version,
    "squad1": functools.partial(_squad, False),
    "squad2": functools.partial(_squad, True),
    "conll2003": _conll2003,
    "race": _race,
    "swag": _swag,
}
"""The scoring function of each task."""


def _require_references(task: str, references: str | None) -> str:
    if references is None:
        raise UserError(
            f"{task} requires --references: pass the released file of the split that was predicted"
        )
    return references


def _match_predictions(
    references: str, expected: Sequence[str], predictions: str, known: Mapping[str, Any]
) -> list[Any]:
    """Returns the prediction of each example, in order; both files must have the same ids."""
    missing = [identity for identity in expected if identity not in known]
    if missing:
        raise UserError(
            f"{predictions} has no prediction for {len(missing)} of {len(expected)} examples of "
            f"{references}, the first is {missing[0]!r}; add them, or score another split"
        )
    unknown = known.keys() - set(expected)
    if unknown:
        first = next(identity for identity in known if identity in unknown)
        raise UserError(
            f"{predictions} has {len(unknown)} predictions with ids that are not in {references}, "
            f"the first is {first!r}; remove them, or score another split"
        )
    if len(known) != len(expected):
        raise UserError(f"{references} has the same id twice: expected distinct ids")
    return [known[identity] for identity in expected]


def _right(references: str, choices: Choices, predictions: str) -> Bool[np.ndarray, " n"]:
    """Returns whether each question was answered correctly."""
    if choices.answers is None:
        raise UserError(f"no answers in {references}: expected a labelled split, such as dev")
    known = multiple_choice_predictions.read(predictions)
    return (
        np.array(_match_predictions(references, choices.ids, predictions, known)) == choices.answers
    )


def _tags_before_last(sentence: Sentence) -> list[str]:
    """Returns the reference tags of a file that has them in its last column but one."""
    for where, columns in zip(sentence.locations, sentence.between, strict=True):
        if not columns or not ner_conll.is_tag(columns[-1]):
            raise UserError(
                f"{where}: expected the reference tag and the predicted tag as the last two "
                "columns; or pass the file of reference tags with --references"
            )
    return [columns[-1] for columns in sentence.between]


def _check_same_words(
    references: str, sentences: list[Sentence], predictions: str, predicted: list[Sentence]
) -> None:
    for reference, found in zip(sentences, predicted, strict=False):
        for number, word in enumerate(found.words):
            if reference.words[number : number + 1] != (word,):
                at_end = number >= len(reference)
                expected = "the end of the sentence" if at_end else f"{reference.words[number]!r}"
                raise UserError(
                    f"{found.locations[number]}: got {word!r}, expected {expected} as in "
                    f"{reference.locations[min(number, len(reference) - 1)]}; both files must "
                    "have the same sentences in the same order"
                )
        if len(found) < len(reference):
            raise UserError(
                f"{found.locations[-1]}: got the end of the sentence, expected "
                f"{reference.words[len(found)]!r} as in {reference.locations[len(found)]}; both "
                "files must have the same sentences in the same order"
            )
    if len(sentences) != len(predicted):
        raise UserError(
            f"{predictions}: got {len(predicted)} sentences, expected {len(sentences)} as in "
            f"{references}; both files must have the same sentences in the same order"
        )
