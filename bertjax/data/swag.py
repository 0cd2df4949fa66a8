"""SWAG (Zellers et al. 2018) as it was released: a table for each split.

A row has a sentence, the beginning of the next one, and four endings of that.
"""

import csv
import pathlib
from collections.abc import Iterator

from bertjax.data.lines import texts
from bertjax.data.multiple_choice import Choices, Row, collected
from bertjax.errors import UserError

FILES = {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}

_CONTEXT, _BEGINNING = "sent1", "sent2"
_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_LABEL = "label"


def read(directory: str | pathlib.Path) -> dict[str, Choices]:
    """Reads `train.csv`, `val.csv` and `test.csv`, as train, dev and test: those that are there.

    Raises:
      UserError: there is none, or a line of one is not what it should be.
    """
    directory = pathlib.Path(directory)
    found = {name: directory / file for name, file in FILES.items()}
    found = {name: path for name, path in found.items() if path.is_file()}
    if not found:
        raise UserError(f"{directory} has no {', '.join(FILES.values())}: wanted SWAG's own")
    return {name: read_file(path, labelled=name != "test") for name, path in found.items()}


def read_file(path: str | pathlib.Path, *, labelled: bool = True) -> Choices:
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
                f"{path} line 1: no column {name!r} among {', '.join(names) or 'none'}; wanted the "
                "header line of the released file"
            )
    rows = [
        _row(f"{path} line {line}", number, names, fields)
        for number, (line, fields) in enumerate(table)
    ]
    if not rows:
        raise UserError(f"{path} holds no questions: wanted one a line behind the header line")
    return collected(rows)


def _table(path: str | pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a file with the line that each begins at; quotes may hold line ends."""
    reader = csv.reader((f"{line}\n" for _, line in texts(str(path))), strict=True)
    begin = 1
    try:
        for fields in reader:
            if fields:
                yield begin, fields
            begin = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path} line {begin}: {error}; wanted fields parted by commas, in quotes where they "
            "hold some"
        ) from None


def _row(where: str, number: int, names: list[str], fields: list[str]) -> Row:
    if len(fields) != len(names):
        raise UserError(
            f"{where}: {len(fields)} fields, wanted {len(names)} parted by commas; mend the line"
        )
    row = dict(zip(names, fields, strict=True))
    label = row.get(_LABEL)
    if label is not None and label not in ("0", "1", "2", "3"):
        raise UserError(f"{where}: label {label!r}, wanted 0, 1, 2 or 3; mend the line")
    return Row(
        where=where,
        context=row[_CONTEXT],
        question=row[_BEGINNING],
        options=tuple(row[name] for name in _ENDINGS),
        answer=None if label is None else int(label),
        identity=str(number),
    )
