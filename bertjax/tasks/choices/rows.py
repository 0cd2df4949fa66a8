"""Rows of a table as multiple-choice questions."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.tasks.multiple_choice.files import Choices, Row, collect
from bertjax.tasks.sequence import files

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHOWN = 40


class Questions(Choices):
    """The questions of a split; "" is the padding of a question with fewer choices than others."""

    def absent(self) -> Bool[np.ndarray, "n C"]:
        """Returns which choices are padding."""
        return np.array([[not option for option in options] for options in self.options], bool)

    def padded(self, count: int) -> "Questions":
        """Returns the questions with `count` choices each."""
        options = [(*own, *[""] * (count - len(own))) for own in self.options]
        return dataclasses.replace(self, options=options)


def read(table: Table, columns: Sequence[str], choices: Sequence[str], label: str) -> Questions:
    """Reads the questions of a table.

    A label is the text of a choice, its index from 0 or its letter, or one of the names of the
    choices in a column of `{"text": [...], "label": [...]}`, as in ARC. Questions may have
    different numbers of choices; empty ones at the end of a row are absent.

    Args:
      table: The examples.
      columns: Column of the question, and of the context if there is one.
      choices: One column of lists, or a column for each choice.
      label: Column of the right choice; "" for none.

    Raises:
      UserError: a text is empty, a label is not a choice, or there are less than two choices.
    """
    texts = files.read_texts(table, files.Columns(tuple(columns), ""))
    rows = []
    if len(choices) == 1:
        cells = table.parse_column(choices[0])
    else:
        cells = [list(row) for row in zip(*(table.columns[name] for name in choices), strict=True)]
    for number, where in enumerate(table.locations):
        options, names = _options(where, cells[number])
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
    listed = listed if isinstance(listed, list) else []
    options = ["" if each is None else str(each).strip() for each in listed]
    while options and not options[-1]:
        options.pop()
    if len(options) < 2:
        raise UserError(
            f"{where}: got the choices {str(cell)[:_SHOWN]!r}, expected a list of two or more "
            "texts; fix the row, or name a column for each choice with "
            "--config.data.choices=\"('a','b')\""
        )
    if not all(options):
        raise UserError(f"{where}: a choice is empty, expected a text; fix or remove the row")
    return tuple(options), names[: len(options)]


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
