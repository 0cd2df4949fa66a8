"""Read RACE (Lai et al. 2017) and SWAG (Zellers et al. 2018) in their released formats.

RACE: `SPLIT/LEVEL/*.txt`, a JSON object for each article with its questions; splits train, dev and
test, levels middle and high. SWAG: a CSV file for each split; a row has a sentence, the beginning
of the next one, and four endings.
"""

import csv
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from bertjax.data.random import sample
from bertjax.errors import UserError
from bertjax.io.json_fields import check_characters
from bertjax.io.lines import read_text_lines

NAMES = ("race", "swag")
"""Data sets that are read; `tasks/multiple_choice/dataset.py` has the readers."""

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
      where: Its place, for the user.
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
                f"{rows[0].where}: expected answers to all questions or to none"
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


LEVELS = ("middle", "high")
SPLITS = ("train", "dev", "test")


def read_race(directory: str | pathlib.Path) -> dict[str, Choices]:
    """Reads `directory/{train,dev,test}/{middle,high}/*.txt`: every split that has a folder.

    Raises:
      UserError: there is none, or a file is not what it should be.
    """
    directory = pathlib.Path(directory)
    found = [split for split in SPLITS if (directory / split).is_dir()]
    if not found:
        raise UserError(f"{directory} has no folder {', '.join(SPLITS)}: expected RACE's own")
    return {split: read_race_split(directory / split) for split in found}


def read_race_split(folder: str | pathlib.Path) -> Choices:
    """Reads `folder/{middle,high}/*.txt`; one level may be absent.

    A question is called by its article's `id` and its number there, from 0: `high19088.txt-0`.

    Raises:
      UserError: there is no such file, or one is not what it should be.
    """
    folder = pathlib.Path(folder)
    rows = [row for level in LEVELS for row in _level(folder / level)]
    if not rows:
        levels = " or ".join(f"{level}/*.txt" for level in LEVELS)
        raise UserError(f"{folder} holds no article: expected {levels}, one for each article")
    return collected(rows)


def _level(folder: pathlib.Path) -> Iterator[Row]:
    """The questions of a folder's articles, in the order of the numbers that files are named by."""
    for path in sorted(folder.glob("*.txt"), key=lambda path: (len(path.name), path.name)):
        article = _article(path)
        columns = [article["questions"], article["options"]]
        answers = article.get("answers", [None] * len(columns[0]))
        sizes = [len(column) for column in (*columns, answers)]
        if len(set(sizes)) > 1:
            raise UserError(
                f"{path}: {sizes[0]} questions, options of {sizes[1]}, {sizes[2]} answers: "
                f"expected "
                "as many of each"
            )
        for number, (question, options, answer) in enumerate(zip(*columns, answers, strict=True)):
            where = f"{path} question {number + 1}"
            for text in (article["article"], question, *_options(where, options)):
                check_characters(where, text)
            yield Row(
                where=where,
                context=article["article"],
                question=question,
                options=_options(where, options),
                answer=None if answer is None else _letter(where, answer),
                identity=f"{article['id']}-{number}",
                level=folder.name,
            )


def _article(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object of a file; its values have the right types, but for single options."""
    try:
        # Control characters as they stand are not JSON, but no reason to refuse a text.
        read_race = json.loads(
            "\n".join(line for _, line in read_text_lines(str(path))), strict=False
        )
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}; copy the released file again") from None
    kinds = {"article": str, "id": str, "questions": list, "options": list}
    kinds |= {"answers": list} if isinstance(read_race, dict) and "answers" in read_race else {}
    fits = isinstance(read_race, dict) and all(
        isinstance(read_race.get(n), k) for n, k in kinds.items()
    )
    if not fits or not all(isinstance(question, str) for question in read_race["questions"]):
        raise UserError(
            f'{path}: expected an object of "article", "questions", "options", "answers", "id"; '
            "copy the released file again"
        )
    return read_race


def _options(where: str, options: Any) -> tuple[str, ...]:
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise UserError(
            f"{where}: options {str(options)[:60]!r} are no list of texts: expected four"
        )
    if len(options) != len(LETTERS):
        raise UserError(f"{where}: {len(options)} options, expected {len(LETTERS)}; fix the file")
    return tuple(options)


def _letter(where: str, answer: Any) -> int:
    if not isinstance(answer, str) or len(answer) != 1 or answer not in LETTERS:
        raise UserError(f"{where}: answer {answer!r}, expected A, B, C or D; fix the file")
    return LETTERS.index(answer)


FILES = {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}

_CONTEXT, _BEGINNING = "sent1", "sent2"
_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_LABEL = "label"


def read_swag(directory: str | pathlib.Path) -> dict[str, Choices]:
    """Reads `train.csv`, `val.csv` and `test.csv`, as train, dev and test: those that are there.

    Raises:
      UserError: there is none, or a line of one is not what it should be.
    """
    directory = pathlib.Path(directory)
    found = {name: directory / file for name, file in FILES.items()}
    found = {name: path for name, path in found.items() if path.is_file()}
    if not found:
        raise UserError(f"{directory} has no {', '.join(FILES.values())}: expected SWAG's own")
    return {name: read_swag_file(path, labelled=name != "test") for name, path in found.items()}


def read_swag_file(path: str | pathlib.Path, *, labelled: bool = True) -> Choices:
    """Reads one table of SWAG; columns that it does not need are passed over.

    A question is called by the number of its row, from 0, as in the first column of the released
    files.

    Args:
      path: The file.
      labelled: Whether there must be labels.

    Raises:
      UserError: a column is missing, or a line is not what it should be.
    """
    table = _table(path)
    _, names = next(table, (1, []))
    needed = [_CONTEXT, _BEGINNING, *_ENDINGS, *([_LABEL] if labelled else [])]
    for name in needed:
        if name not in names:
            raise UserError(
                f"{path} line 1: no column {name!r} among {', '.join(names) or 'none'}; expected "
                f"the "
                "header line of the released file"
            )
    rows = [
        _row(f"{path} line {line}", number, names, fields)
        for number, (line, fields) in enumerate(table)
    ]
    if not rows:
        raise UserError(f"{path} holds no questions: expected one a line behind the header line")
    return collected(rows)


def _table(path: str | pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a file with the line that each begins at; quotes may hold line ends."""
    reader = csv.reader((f"{line}\n" for _, line in read_text_lines(str(path))), strict=True)
    begin = 1
    try:
        for fields in reader:
            if fields:
                yield begin, fields
            begin = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path} line {begin}: {error}; expected fields parted by commas, in quotes where they "
            "hold some"
        ) from None


def _row(where: str, number: int, names: list[str], fields: list[str]) -> Row:
    if len(fields) != len(names):
        raise UserError(
            f"{where}: {len(fields)} fields, expected {len(names)} parted by commas; fix the line"
        )
    row = dict(zip(names, fields, strict=True))
    label = row.get(_LABEL)
    if label is not None and label not in ("0", "1", "2", "3"):
        raise UserError(f"{where}: label {label!r}, expected 0, 1, 2 or 3; fix the line")
    return Row(
        where=where,
        context=row[_CONTEXT],
        question=row[_BEGINNING],
        options=tuple(row[name] for name in _ENDINGS),
        answer=None if label is None else int(label),
        identity=str(number),
    )
