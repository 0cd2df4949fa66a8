"""Questions with options, of which one is right: what RACE and SWAG have in common."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from bertjax.data.randomness import sample
from bertjax.errors import UserError

NAMES = ("race", "swag")
"""Data sets that are read; `datasets/multiple_choice.py` has the readers."""

LETTERS = "ABCD"
"""The options of a question; both data sets have four."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """Questions in the order of their files.

    Attributes:
      contexts: What is known when a question is asked: an article, or the sentence before.
      questions: What is asked, or the beginning of what an option ends.
      options: C texts for each question.
      answers: The number of the right one, from 0; None where the data does not tell.
      ids: What each question is called in files of predictions.
      levels: `middle` or `high` in RACE, else empty.
    """

    contexts: list[str]
    questions: list[str]
    options: list[tuple[str, ...]]
    answers: Int32[np.ndarray, " n"] | None
    ids: list[str]
    levels: list[str]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_choices(self) -> int:
        """C, which is the same for every question."""
        return len(self.options[0])

    def sample(self, size: int, seed: int) -> "Choices":
        """So many of the questions, drawn without replacement, in file order."""
        kept = sample(len(self), size, seed)
        lists = ("contexts", "questions", "options", "ids", "levels")
        return Choices(
            answers=None if self.answers is None else self.answers[kept],
            **{name: [getattr(self, name)[i] for i in kept] for name in lists},
        )


@dataclasses.dataclass(frozen=True)
class Row:
    """One question, as a reader of files finds it.

    Attributes:
      where: Its place, for a person.
      context: See `Choices`.
      question: See `Choices`.
      options: See `Choices`.
      answer: See `Choices`.
      identity: See `Choices.ids`.
      level: See `Choices`.
    """

    where: str
    context: str
    question: str
    options: tuple[str, ...]
    answer: int | None
    identity: str
    level: str = ""


def collected(rows: Sequence[Row]) -> Choices:
    """All questions of a split.

    Raises:
      UserError: only some have answers, or two are called the same.
    """
    answers = [row.answer for row in rows]
    places: dict[str, str] = {}
    for row in rows:
        if (row.answer is None) != (answers[0] is None):
            raise UserError(
                f"{row.where}: {'no' if row.answer is None else 'an'} answer, unlike "
                f"{rows[0].where}: wanted answers to all questions or to none"
            )
        if row.identity in places:
            raise UserError(
                f"{row.where}: question {row.identity!r} is at {places[row.identity]} already; "
                "remove one, or give its article another id"
            )
        places[row.identity] = row.where
    return Choices(
        contexts=[row.context for row in rows],
        questions=[row.question for row in rows],
        options=[row.options for row in rows],
        answers=None if answers[0] is None else np.array(answers, np.int32),
        ids=[row.identity for row in rows],
        levels=[row.level for row in rows],
    )
