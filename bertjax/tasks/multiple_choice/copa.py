"""COPA (Roemmele et al. 2011) as released in SuperGLUE: two causes or effects of a premise."""

import pathlib

import numpy as np

from bertjax.tasks.multiple_choice.files import Choices
from bertjax.tasks.superglue import files
from bertjax.tasks.superglue.records import Examples
from bertjax.tasks.superglue.table import superglue_task

TASK = superglue_task("copa")


def read(directory: str | pathlib.Path) -> dict[str, Choices]:
    """Reads the available splits: `directory/COPA/{train,val,test}.jsonl`.

    The question is the conjunction "because" or "so".

    Raises:
      UserError: a required file is missing, or a record is malformed.
    """
    splits = files.read(str(directory), TASK)
    return {name: _choices(examples) for name, examples in splits.items()}


def _choices(examples: Examples) -> Choices:
    rows = examples.rows
    labels = examples.labels
    return Choices(
        contexts=[row.texts[0] for row in rows],
        questions=[row.texts[1] for row in rows],
        options=[row.texts[2:] for row in rows],
        answers=None if labels is None else labels.astype(np.int32),
        ids=[str(row.key[0]) for row in rows],
        levels=[""] * len(rows),
    )


def write(folder: pathlib.Path, split: str, ids: list[str], answers: list[int]) -> None:
    """Writes the file of SuperGLUE's evaluation server, `test/COPA.jsonl`.

    Args:
      folder: The folder of all predictions.
      split: `dev` or `test`.
      ids: The ids of the questions.
      answers: The index of the predicted alternative of each question.

    Raises:
      UserError: the file cannot be written.
    """
    chosen = {(int(identity),): answer for identity, answer in zip(ids, answers, strict=True)}
    own = TASK.split(split)
    files.write_predictions(folder / split / f"{own.server}.jsonl", own.answers, chosen)
