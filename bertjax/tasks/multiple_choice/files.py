"""Read RACE (Lai et al. 2017) and SWAG (Zellers et al. 2018) in their released formats.

RACE: `SPLIT/LEVEL/*.txt`, one JSON object per article with its questions; splits train, dev and
test, levels middle and high. SWAG: one CSV file per split; a row has a sentence, the start of the
next one, and four endings.
"""

import contextlib
import csv
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Int, Int32

from bertjax.data.random import sample
from bertjax.errors import UserError
from bertjax.io.files import check_characters
from bertjax.io.lines import read_text_lines

NAMES = ("race", "swag", "copa")
"""Supported data sets; `tasks/multiple_choice/dataset.py` maps them to readers."""

LETTERS = "ABCD"
"""Names of the options of a question of RACE and SWAG."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """The questions of a split, in file order.

    Attributes:
      contexts: The article (RACE), the sentence before (SWAG) or the premise (COPA) of each
        question.
      questions: The question (RACE), the start of the sentence to complete (SWAG) or the
        conjunction (COPA).
      options: C texts for each question.
      answers: Index of the correct option of each question, from 0; None for an unlabelled split.
      ids: Id of each question in prediction files.
      levels: `middle` or `high` for RACE, else empty.
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
        """C, the same for all questions."""
        return len(self.options[0])

    def absent(self) -> Bool[np.ndarray, "n C"]:
        """Returns which options are only padding, as other questions have more: none here."""
        return np.zeros((len(self), self.num_choices), bool)

    def sample(self, size: int, seed: int) -> Self:
        """Returns `size` random questions, sampled without replacement, in file order."""
        return self.take(sample(len(self), size, seed))

    def take(self, kept: Int[np.ndarray, " m"]) -> Self:
        """Returns the questions with these numbers, in their order."""
        lists = ("contexts", "questions", "options", "ids", "levels")
        return dataclasses.replace(
            self,
            answers=None if self.answers is None else self.answers[kept],
            **{name: [getattr(self, name)[i] for i in kept] for name in lists},
        )


@dataclasses.dataclass(frozen=True)
class Row:
    """One question of a file.

    Attributes:
      where: Location in the files, for error messages.
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


def collect(rows: Sequence[Row]) -> Choices:
    """Collects the questions of a split as columns.

    Raises:
      UserError: only some questions have answers, or two have the same id.
    """
    answers = [row.answer for row in rows]
    locations: dict[str, str] = {}
    for row in rows:
        if (row.answer is None) != (answers[0] is None):
            raise UserError(
                f"{row.where}: got {'no' if row.answer is None else 'an'} answer, unlike "
                f"{rows[0].where}; expected answers to all questions or to none"
            )
        if row.identity in locations:
            raise UserError(
                f"{row.where}: question {row.identity!r} occurs at {locations[row.identity]} too; "
                "remove one, or give its article another id"
            )
        locations[row.identity] = row.where
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
    """Reads the available splits of RACE: `directory/{train,dev,test}/{middle,high}/*.txt`.

    Raises:
      UserError: there is no split, or a file is malformed.
    """
    directory = pathlib.Path(directory)
    found = [split for split in SPLITS if (directory / split).is_dir()]
    if not found:
        raise UserError(
            f"no folder {', '.join(SPLITS)} in {directory}: expected the folder of the RACE release"
        )
    return {split: read_race_split(directory / split) for split in found}


def read_race_split(folder: str | pathlib.Path) -> Choices:
    """Reads one split of RACE: `folder/{middle,high}/*.txt`; one level may be absent.

    The id of a question is its article's `id` and its index there, from 0: `high19088.txt-0`.

    Raises:
      UserError: there is no file, or one is malformed.
    """
    folder = pathlib.Path(folder)
    rows = [row for level in LEVELS for row in _level(folder / level)]
    if not rows:
        levels = " or ".join(f"{level}/*.txt" for level in LEVELS)
        raise UserError(f"no article in {folder}: expected {levels}, one file per article")
    return collect(rows)


def _level(folder: pathlib.Path) -> Iterator[Row]:
    """Yields the questions of a folder's articles in numerical order of the file names."""
    for path in sorted(folder.glob("*.txt"), key=lambda path: (len(path.name), path.name)):
        article = _article(path)
        columns = [article["questions"], article["options"]]
        answers = article.get("answers", [None] * len(columns[0]))
        sizes = [len(column) for column in (*columns, answers)]
        if len(set(sizes)) > 1:
            raise UserError(
                f"{path}: got {sizes[0]} questions, {sizes[1]} lists of options and {sizes[2]} "
                "answers, expected the same number of each; copy the released file again"
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
    """Reads the JSON object of a file and checks the types of its values, except single options."""
    try:
        # Not strict: released articles contain raw control characters.
        article = json.loads(
            "\n".join(line for _, line in read_text_lines(str(path))), strict=False
        )
    except ValueError as error:
        raise UserError(f"{path}: invalid JSON ({error}); copy the released file again") from None
    kinds = {"article": str, "id": str, "questions": list, "options": list}
    kinds |= {"answers": list} if isinstance(article, dict) and "answers" in article else {}
    fits = isinstance(article, dict) and all(
        isinstance(article.get(n), k) for n, k in kinds.items()
    )
    if not fits or not all(isinstance(question, str) for question in article["questions"]):
        raise UserError(
            f'{path}: expected an object with "article", "questions", "options", "answers", "id"; '
            "copy the released file again"
        )
    return article


def _options(where: str, options: Any) -> tuple[str, ...]:
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise UserError(
            f"{where}: options: got {str(options)[:60]!r}, expected a list of {len(LETTERS)} "
            "strings; fix the file"
        )
    if len(options) != len(LETTERS):
        raise UserError(
            f"{where}: got {len(options)} options, expected {len(LETTERS)}; fix the file"
        )
    return tuple(options)


def _letter(where: str, answer: Any) -> int:
    if not isinstance(answer, str) or len(answer) != 1 or answer not in LETTERS:
        raise UserError(f"{where}: answer: got {answer!r}, expected A, B, C or D; fix the file")
    return LETTERS.index(answer)


FILES = {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}

_CONTEXT, _BEGINNING = "sent1", "sent2"
_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_LABEL = "label"


def read_swag(directory: str | pathlib.Path) -> dict[str, Choices]:
    """Reads the available splits of SWAG: `train.csv`, `val.csv` (dev) and `test.csv`.

    Raises:
      UserError: there is no split, or a line is malformed.
    """
    directory = pathlib.Path(directory)
    found = {name: directory / file for name, file in FILES.items()}
    found = {name: path for name, path in found.items() if path.is_file()}
    if not found:
        raise UserError(
            f"no {', '.join(FILES.values())} in {directory}: expected the folder of the SWAG "
            "release"
        )
    return {name: read_swag_file(path, labelled=name != "test") for name, path in found.items()}


def read_swag_file(path: str | pathlib.Path, *, labelled: bool = True) -> Choices:
    """Reads one CSV file of SWAG; further columns are ignored.

    The id of a question is the index of its row, from 0, as in the first column of the released
    files.

    Args:
      path: The file.
      labelled: Whether labels are required.

    Raises:
      UserError: a column is missing, or a line is malformed.
    """
    table = _read_csv(path)
    names = table[0][1] if table else []
    needed = [_CONTEXT, _BEGINNING, *_ENDINGS, *([_LABEL] if labelled else [])]
    for name in needed:
        if name not in names:
            raise UserError(
                f"{path} line 1: no column {name!r} among {', '.join(names) or 'none'}; expected "
                "the header line of the released file"
            )
    rows = [
        _row(f"{path} line {line}", number, names, fields)
        for number, (line, fields) in enumerate(table[1:])
    ]
    if not rows:
        raise UserError(f"{path} has no questions: expected one per line after the header line")
    return collect(rows)


def _read_csv(path: str | pathlib.Path) -> list[tuple[int, list[str]]]:
    """Read (number of the first line, fields) of each row; quoted fields may have newlines."""
    rows, begin = [], 1
    # The file is closed also where a malformed row ends the loop.
    with contextlib.closing(read_text_lines(str(path))) as lines:
        reader = csv.reader((f"{line}\n" for _, line in lines), strict=True)
        try:
            for fields in reader:
                if fields:
                    rows.append((begin, fields))
                begin = reader.line_num + 1
        except csv.Error as error:
            raise UserError(
                f"{path} line {begin}: {error}; expected fields separated by commas, and quotes "
                "around fields that contain commas"
            ) from None
    return rows


def _row(where: str, number: int, names: list[str], fields: list[str]) -> Row:
    if len(fields) != len(names):
        raise UserError(
            f"{where}: got {len(fields)} fields, expected {len(names)} separated by commas; fix "
            "the line"
        )
    row = dict(zip(names, fields, strict=True))
    label = row.get(_LABEL)
    if label is not None and label not in ("0", "1", "2", "3"):
        raise UserError(f"{where}: label: got {label!r}, expected 0, 1, 2 or 3; fix the line")
    return Row(
        where=where,
        context=row[_CONTEXT],
        question=row[_BEGINNING],
        options=tuple(row[name] for name in _ENDINGS),
        answer=None if label is None else int(label),
        identity=str(number),
    )
