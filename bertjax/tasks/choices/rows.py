"""Rows of a table as multiple-choice questions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.tasks.multiple_choice.files import Choices, Row, collect
from bertjax.tasks.sequence import files

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHOWN = 40


class Questions(Choices):
    """The questions of a split, which can be divided."""

    def take(self, kept: Int[np.ndarray, " m"]) -> "Questions":
        """Returns the questions with these numbers, in their order."""
        lists = ("contexts", "questions", "options", "ids", "levels")
        return Questions(
            answers=None if self.answers is None else self.answers[kept],
            **{name: [getattr(self, name)[i] for i in kept] for name in lists},
        )


def read(table: Table, columns: Sequence[str], choices: Sequence[str], label: str) -> Questions:
    """Reads the questions of a table.

    A label is the text of a choice, its index from 0 or its letter, or one of the names of the
    choices in a column of `{"text": [...], "label": [...]}`, as in ARC.

    Args:
      table: The examples.
      columns: Column of the question, and of the context if there is one.
      choices: One column of lists, or a column for each choice.
      label: Column of the right choice; "" for none.

    Raises:
      UserError: a text is empty, a label is not a choice, or the number of choices differs.
    """
    texts = files.read_texts(table, files.Columns(tuple(columns), ""))
    rows = []
    if len(choices) == 1:
        cells = table.parse_column(choices[0])
    else:
        cells = [list(row) for row in zip(*(table.columns[name] for name in choices), strict=True)]
    for number, where in enumerate(table.locations):
        options, names = _options(where, cells[number])
        if rows and len(options) != len(rows[0].options):
            raise UserError(
                f"{where}: got {len(options)} choices, expected {len(rows[0].options)} as at "
                f"{rows[0].where}; give every question the same number"
            )
        answer = _answer(where, table.columns[label][number], options, names) if label else None
        context, question = sequence_texts([column[number] for column in texts])
        rows.append(Row(where, context, question, options, answer, str(number)))
    return Questions(**vars(collect(rows)))


def sequence_texts(texts: Sequence[str]) -> tuple[str, str]:
    """Returns the text before [SEP], and the one that a choice completes: "_" is the choice alone.

    Args:
      texts: The question, and the context if there is one.
    """
    question, *context = texts
    return (context[0], question) if context else (question, "_")


def _options(where: str, cell: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the texts of the choices and their names, if they have any."""
    names, listed = (), cell
    if isinstance(cell, dict) and {"text", "label"} <= cell.keys():
        names, listed = tuple(map(str, cell["label"])), cell["text"]
    if not isinstance(listed, list) or len(listed) < 2:
        raise UserError(
            f"{where}: got the choices {str(cell)[:_SHOWN]!r}, expected a list of two or more "
            "texts; fix the row, or name a column for each choice with "
            "--config.data.choices=\"('a','b')\""
        )
    options = tuple("" if each is None else str(each).strip() for each in listed)
    if not all(options):
        raise UserError(f"{where}: a choice is empty, expected a text; fix or remove the row")
    return options, names


def _answer(where: str, label: Any, options: Sequence[str], names: Sequence[str]) -> int:
    text = "" if label is None else str(label).strip()
    found = [number for number, option in enumerate(options) if option == text]
    if names:
        found = [number for number, name in enumerate(names) if name == text]
    elif type(label) is int or (not found and text.isdecimal()):
        found = [int(text)] if 0 <= int(text) < len(options) else []
    elif not found and len(text) == 1 and text in LETTERS[: len(options)]:
        found = [LETTERS.index(text)]
    if len(found) != 1:
        last = LETTERS[: len(options)][-1]
        expected = (
            f"the text of one choice, an index below {len(options)}, or a letter up to {last}"
        )
        if names:
            expected = f"one of {', '.join(names)}"
        raise UserError(f"{where}: label: got {text[:_SHOWN]!r}, expected {expected}; fix the row")
    return found[0]
