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


def read(
    table: Table,
    columns: Sequence[str],
    choices: Sequence[str],
    label: str,
    *,
    by_text: bool | None = None,
) -> Questions:
    """Reads the questions of a table.

    In a column of labels all are texts of choices, or all are indices from 0 or letters; in a row
    with choices in the form `{"text": [...], "label": [...]}`, as in ARC, a label is one of these
    names. Questions may have different numbers of choices; empty ones at the end of a row are
    absent.

    Args:
      table: The examples.
      columns: Column of the question, and of the context if there is one.
      choices: One column of lists, or a column for each choice.
      label: Column of the right choice; "" for none.
      by_text: Whether the labels are texts; None for `are_labels_texts` of this table.

    Raises:
      UserError: a column is missing, a text is empty, a label is not a choice, or there are less
        than two choices.
    """
    texts = files.read_texts(table, files.Columns(tuple(columns), ""))
    options = _all_options(table, choices)
    if label and by_text is None:
        by_text = are_labels_texts(table, choices, label)
    rows = []
    for number, (where, (own, names)) in enumerate(zip(table.locations, options, strict=True)):
        cell = table.columns[label][number] if label else None
        answer = _answer(where, cell, own, names, bool(by_text)) if label else None
        context, question = sequence_texts([column[number] for column in texts])
        rows.append(Row(where, context, question, own, answer, str(number)))
    return Questions(**vars(collect(rows)))


def are_labels_texts(table: Table, choices: Sequence[str], label: str) -> bool:
    """Whether labels are texts of choices, rather than indices or letters.

    This is the reading that applies to more rows, since a text such as "1" may also be an index;
    texts, if both apply to as many.
    """
    cells = zip(table.columns[label], _all_options(table, choices), strict=True)
    plain = [(cell, options) for cell, (options, names) in cells if not names]
    num_texts = sum(_is_text(cell, options) for cell, options in plain)
    return num_texts >= sum(_find_index(cell, options) is not None for cell, options in plain)


def sequence_texts(texts: Sequence[str]) -> tuple[str, str]:
    """Returns the text before [SEP], and the one that a choice completes: "_" is the choice alone.

    Args:
      texts: The question, and the context if there is one.
    """
    question, *context = texts
    return (context[0], question) if context else (question, "_")


def _all_options(
    table: Table, choices: Sequence[str]
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Returns the texts and the names of the choices of each row."""
    for name in choices:
        files.check_column(table, name, "config.data.choices")
    if len(choices) == 1:
        cells = table.parse_column(choices[0], strict=True)
    else:
        cells = [list(row) for row in zip(*(table.columns[name] for name in choices), strict=True)]
    return [_options(where, cell) for where, cell in zip(table.locations, cells, strict=True)]


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


def _answer(
    where: str, label: Any, options: Sequence[str], names: Sequence[str], by_text: bool
) -> int:
    text = _to_text(label)
    if names or (by_text and _is_text(label, options)):
        listed = names or options
        found = [number for number, name in enumerate(listed) if name == text]
    else:
        index = None if by_text else _find_index(label, options)
        found = [] if index is None else [index]
    if len(found) > 1:
        raise UserError(
            f"{where}: label: got {text[:_SHOWN]!r}, which is choice {found[0]} and {found[1]} "
            "(from 0), expected different choices; fix the row"
        )
    if not found:
        expected = f"one of {', '.join(names)}"
        if not names:
            expected = (
                f"the text of one choice, an index below {len(options)}, or a letter up to "
                f"{LETTERS[: len(options)][-1]}, and either texts or indices and letters in the "
                "whole column"
            )
        raise UserError(f"{where}: label: got {text[:_SHOWN]!r}, expected {expected}; fix the row")
    return found[0]


def _to_text(label: Any) -> str:
    return "" if label is None else str(label).strip()


def _is_text(label: Any, options: Sequence[str]) -> bool:
    return type(label) is not int and _to_text(label) in options


def _find_index(label: Any, options: Sequence[str]) -> int | None:
    """Returns the choice of an index or a letter; None for other labels."""
    text = _to_text(label)
    if text.isdecimal():
        return int(text) if int(text) < len(options) else None
    return LETTERS.index(text) if len(text) == 1 and text in LETTERS[: len(options)] else None
