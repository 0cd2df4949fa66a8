"""RACE (Lai et al. 2017) as it was released: a file for each article with its questions.

The folder holds `SPLIT/LEVEL/*.txt`, each a JSON object, with splits train, dev and test and levels
middle and high.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from bertjax.data.json_fields import check_characters
from bertjax.data.lines import texts
from bertjax.data.multiple_choice import LETTERS, Choices, Row, collected
from bertjax.errors import UserError

LEVELS = ("middle", "high")
SPLITS = ("train", "dev", "test")


def read(directory: str | pathlib.Path) -> dict[str, Choices]:
    """Reads `directory/{train,dev,test}/{middle,high}/*.txt`: every split that has a folder.

    Raises:
      UserError: there is none, or a file is not what it should be.
    """
    directory = pathlib.Path(directory)
    found = [split for split in SPLITS if (directory / split).is_dir()]
    if not found:
        raise UserError(f"{directory} has no folder {', '.join(SPLITS)}: wanted RACE's own")
    return {split: read_split(directory / split) for split in found}


def read_split(folder: str | pathlib.Path) -> Choices:
    """Reads `folder/{middle,high}/*.txt`; one level may be absent.

    A question is called by its article's `id` and its number there, from 0: `high19088.txt-0`.

    Raises:
      UserError: there is no such file, or one is not what it should be.
    """
    folder = pathlib.Path(folder)
    rows = [row for level in LEVELS for row in _level(folder / level)]
    if not rows:
        levels = " or ".join(f"{level}/*.txt" for level in LEVELS)
        raise UserError(f"{folder} holds no article: wanted {levels}, one for each article")
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
                f"{path}: {sizes[0]} questions, options of {sizes[1]}, {sizes[2]} answers: wanted "
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
        read = json.loads("\n".join(line for _, line in texts(str(path))), strict=False)
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}; copy the released file again") from None
    kinds = {"article": str, "id": str, "questions": list, "options": list}
    kinds |= {"answers": list} if isinstance(read, dict) and "answers" in read else {}
    fits = isinstance(read, dict) and all(isinstance(read.get(n), k) for n, k in kinds.items())
    if not fits or not all(isinstance(question, str) for question in read["questions"]):
        raise UserError(
            f'{path}: wanted a JSON object of "article", "questions", "options", "answers", "id"; '
            "copy the released file again"
        )
    return read


def _options(where: str, options: Any) -> tuple[str, ...]:
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise UserError(f"{where}: options {str(options)[:60]!r} are no list of texts: wanted four")
    if len(options) != len(LETTERS):
        raise UserError(f"{where}: {len(options)} options, wanted {len(LETTERS)}; mend the file")
    return tuple(options)


def _letter(where: str, answer: Any) -> int:
    if not isinstance(answer, str) or len(answer) != 1 or answer not in LETTERS:
        raise UserError(f"{where}: answer {answer!r}, wanted A, B, C or D; mend the file")
    return LETTERS.index(answer)
