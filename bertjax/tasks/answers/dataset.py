"""Dataset of a table of questions, contexts and answers that are parts of the contexts."""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.constraints import AnyText, Finite, OpenShare, PositiveInt, Seed
from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.io.files import write_output
from bertjax.tasks import dataset, tables
from bertjax.tasks.dataset import EncodingSpec
from bertjax.tasks.sequence import files
from bertjax.tasks.squad import dataset as squad_dataset
from bertjax.tasks.squad.dataset import OUTPUT, from_inputs, input_fields
from bertjax.tasks.squad.files import SquadQuestions

__all__ = ["OUTPUT", "DataFields", "Dataset", "from_inputs", "input_fields"]

Fields = Mapping[str, Any]

QUESTION_COLUMNS = ("question", "query")
CONTEXT_COLUMNS = ("context", "passage", "document", "paragraph", "text")
ANSWER_COLUMNS = ("answers", "answer", "answer_text", "label")
"""Common names of columns, the first that exists is chosen."""

_START = "answer_start"
_SHOWN = 40


class DataFields(dataset.DataFields):
    """The fields of `config.data`; see also `tasks/squad/dataset.py`.

    Attributes:
      text: Column of the question; "" for one with a common name.
      text_pair: Column of the context; "" for one with a common name.
      label: Column of the answer; "" for one with a common name.
      validation_fraction: Share of the training examples that becomes the dev split, if there is no
        dev file; None for 0.1. The questions of a context stay together.
      split_seed: Seed of that choice; None for 0.
      unanswerable: Whether rows may have no answer.
      doc_stride: Stride of the windows, in tokens of the context.
      max_query_length: Maximum length of a question in tokens; longer ones are truncated.
      max_answer_length: Maximum length of an answer in tokens.
      null_threshold: Null odds above which a question has no answer; None for the best value on
        dev.
    """

    text: AnyText
    text_pair: AnyText
    label: AnyText
    validation_fraction: OpenShare | None
    split_seed: Seed | None
    unanswerable: bool
    doc_stride: PositiveInt
    max_query_length: PositiveInt
    max_answer_length: PositiveInt
    null_threshold: Finite | None

    relations = squad_dataset.DataFields.relations


class Dataset(squad_dataset.Dataset):
    """Extractive answers of a table; see `interfaces.Dataset`.

    Attributes:
      findings: Lines that describe the columns that were found.
    """

    task_fields = MappingProxyType({})

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits; see `interfaces.Dataset` for the arguments.

        Raises:
          UserError: a file, column or answer is missing or invalid, or an answer is not in its
            context.
        """
        squad_dataset.check_reads_tokens(spec)
        self.name = pathlib.Path(data).resolve().name.partition(".")[0] or "answers"
        found = tables.read_splits(data)
        train = found["train"]
        columns = (
            tables.choose_column(train, fields["text"], QUESTION_COLUMNS, "text"),
            tables.choose_column(train, fields["text_pair"], CONTEXT_COLUMNS, "text_pair"),
        )
        label = tables.choose_column(train, fields["label"], ANSWER_COLUMNS, "label")
        read = {}
        for name, table in found.items():
            own = label if tables.is_labelled(table, label, name) else ""
            read[name] = read_questions(table, columns, own)
            _check_impossible(table, read[name], fields)
        split, lines = tables.with_dev(
            data, read, fields, read["train"].impossible.astype(np.int32), read["train"].context_of
        )
        self._encode(split, dict.fromkeys(split, data), fields, spec)
        described = ", ".join(map(repr, columns))
        missing = int(split["train"].impossible.sum())
        self.findings = (
            f"columns: question and context {described}, answer {label!r}; {missing} questions of "
            "train have no answer",
            *lines,
        )

    def write(
        self, split: str, predictions: Float[np.ndarray, "n S"], folder: pathlib.Path
    ) -> None:
        """Writes `SPLIT.jsonl`: of every question the accepted answers and the predicted one."""
        questions, lines = self.questions[split], []
        found = self.found_answers(split, predictions).predictions(self._threshold)
        for number, identity in enumerate(questions.ids):
            row = {"row": int(identity), "question": questions.questions[number]}
            if questions.labelled:
                row["true"] = list(questions.answers[number])
            lines.append(json.dumps(row | {"answer": found[identity]}, ensure_ascii=False))
        write_output(folder / f"{split}.jsonl", "\n".join(lines) + "\n")


def read_questions(table: Table, columns: tuple[str, str], label: str) -> SquadQuestions:
    """Reads the questions of a table.

    A cell of answers is a text, a list of texts, or `{"text": [...], "answer_start": [...]}` as in
    `datasets`. A column `answer_start` has the start of a text, or the list of those of a list. The
    start of an answer without one is its first occurrence in the context.

    Args:
      table: The examples.
      columns: Columns of question and context.
      label: Column of the answers; "" for none.

    Raises:
      UserError: a text is empty, a start is invalid, or an answer is not in its context.
    """
    for option, name in zip(("text", "text_pair"), columns, strict=True):
        files.check_column(table, name, option)
    questions, _ = files.read_texts(table, files.Columns(columns, ""))
    contexts = [str(context) for context in table.columns[columns[1]]]  # offsets count its spaces
    answers, starts = [], []
    cells = _answer_cells(table, label, contexts) if label else []
    given = table.parse_column(_START) if _START in table.columns else [None] * len(questions)
    for number, where in enumerate(table.locations):
        pairs = _answers(where, cells[number], given[number]) if label else []
        found = [(text, _start(where, contexts[number], text, start)) for text, start in pairs]
        answers.append(tuple(text for text, _ in found))
        starts.append(tuple(start for _, start in found))
    numbers = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
    return SquadQuestions(
        ids=[str(row) for row in range(len(questions))],
        titles=[""] * len(questions),
        questions=questions,
        contexts=list(numbers),
        context_of=np.array([numbers[context] for context in contexts], np.int64),
        answers=answers,
        answer_starts=starts,
        impossible=np.array([bool(label) and not own for own in answers], bool),
        labelled=bool(label),
    )


def _answer_cells(table: Table, label: str, contexts: Sequence[str]) -> list[Any]:
    """Returns the cells of the answers; what is a part of the context is a text, also in brackets.

    An empty list is none: CSV has no other way to write a question without an answer in JSON.
    """
    rows = zip(table.columns[label], table.parse_column(label), contexts, strict=True)
    return [
        raw if cell and isinstance(raw, str) and raw.strip() in context else cell
        for raw, cell, context in rows
    ]


def _answers(where: str, cell: Any, start: Any) -> list[tuple[str, int | None]]:
    """Returns (text, start or None) of each answer of a cell; `start` is the cell of starts."""
    if isinstance(cell, dict) and isinstance(cell.get("text"), list):
        return _with_starts(where, cell["text"], cell.get(_START))
    if isinstance(cell, list):
        return _with_starts(where, cell, start)
    if isinstance(cell, dict):
        raise UserError(
            f"{where}: got the answer {str(cell)[:_SHOWN]}, expected a text, a list of texts, or "
            '{"text": [...], "answer_start": [...]}; fix the row'
        )
    text = "" if cell is None else str(cell).strip()
    return _with_starts(where, [text], start) if text else []


def _with_starts(where: str, texts: Sequence[Any], starts: Any) -> list[tuple[str, int | None]]:
    """Pairs texts with a list of starts, or a single text with its start."""
    cells = starts if isinstance(starts, list | tuple) else [starts]
    found = [_parse_start(where, start) for start in cells]
    if found in ([], [None]):
        found = [None] * len(texts)
    if len(found) != len(texts):
        raise UserError(
            f"{where}: got {len(texts)} answers and {len(found)} starts, expected the same number; "
            "fix the row"
        )
    return list(zip(map(str, texts), found, strict=True))


def _parse_start(where: str, start: Any) -> int | None:
    """Returns a start as a whole number; None for an empty cell, NaN or a negative number.

    Columns with empty cells are often written as decimals: 8.0.
    """
    text = "" if start is None else str(start).strip()
    try:
        number = float(text or "nan")
    except ValueError:
        number = math.inf
    if math.isnan(number) or number < 0:
        return None
    if not number.is_integer():
        raise UserError(
            f"{where}: {_START}: got {text[:_SHOWN]!r}, expected a whole number, the position of "
            "the answer in its context; fix the row"
        )
    return int(number)


def _start(where: str, context: str, text: str, start: int | None) -> int:
    place = context.find(text) if start is None else start
    if place < 0 or not text.strip() or context[place : place + len(text)] != text:
        at = "" if start is None else f" at character {place}"
        raise UserError(
            f"{where}: got the answer {text[:_SHOWN]!r}, which is not in its context{at}; expected "
            "a part of the context, letter by letter; fix or remove the row"
        )
    return place


def _check_impossible(table: Table, questions: SquadQuestions, fields: Fields) -> None:
    """Refuses questions without an answer, unless the config expects them."""
    if questions.impossible.any() and not fields["unanswerable"]:
        where = table.locations[int(questions.impossible.argmax())]
        raise UserError(
            f"{where}: got no answer, expected one for every question; fix the row, or set "
            "--config.data.unanswerable=true"
        )
