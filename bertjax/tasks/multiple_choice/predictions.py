"""Read and write predicted answers of multiple-choice questions, as JSON or JSON lines.

An answer is a letter from A to D or an index from 0.
"""

import json
import pathlib
from typing import Any

from bertjax.errors import UserError
from bertjax.io import files as io_files
from bertjax.io.lines import read_text_lines
from bertjax.tasks.multiple_choice.files import LETTERS

_FORMS = '{"ID": "B", ...} or lines of {"id": "ID", "prediction": "B"}'

_Pairs = list[tuple[str, Any]]
"""The items of a JSON object; a key may occur twice."""


def read(path: str | pathlib.Path) -> dict[str, int]:
    """Reads the index of the predicted option of each question, by question id.

    Raises:
      UserError: the file has neither format, a question occurs twice, or an answer is invalid.
    """
    lines = [(where, line) for where, line in read_text_lines(str(path)) if line.strip()]
    found: dict[str, int] = {}
    for where, identity, answer in _answers(path, lines):
        if identity in found:
            raise UserError(f"{where}: question {identity!r} occurs twice; remove one answer")
        found[identity] = _option(where, identity, answer)
    return found


def write(path: str | pathlib.Path, ids: list[str], answers: list[int]) -> None:
    """Writes one JSON object of letters by question id.

    Args:
      path: The file to write.
      ids: The ids of the questions.
      answers: The index of the predicted option of each question.

    Raises:
      UserError: the file cannot be written.
    """
    chosen = dict(zip(ids, (LETTERS[answer] for answer in answers), strict=True))
    io_files.write_output(pathlib.Path(path), json.dumps(chosen, indent=1) + "\n")


def write_split(folder: pathlib.Path, split: str, ids: list[str], answers: list[int]) -> None:
    """Writes `SPLIT.json`; see `write`."""
    write(folder / f"{split}.json", ids, answers)


def _answers(path: str | pathlib.Path, lines: list[tuple[str, str]]) -> list[tuple[str, str, Any]]:
    """Returns (location, id, answer) of each question from either format."""
    rows = []
    for where, line in lines:
        row = _object(line)
        if row is None or {"id", "prediction"} != {name for name, _ in row}:
            break
        fields = dict(row)
        rows.append((where, str(fields["id"]), fields["prediction"]))
    if lines and len(rows) == len(lines):
        return rows
    whole = _object("\n".join(line for _, line in lines))
    if whole is not None:
        return [(str(path), identity, answer) for identity, answer in whole]
    where, line = lines[len(rows)] if rows else (str(path), lines[0][1] if lines else "")
    raise UserError(f"{where}: got {line[:60]!r}, expected {_FORMS}")


def _object(text: str) -> _Pairs | None:
    """Returns the items of a JSON object, or None if the text is something else."""
    try:
        read = json.loads(text, object_pairs_hook=lambda pairs: ("object", pairs))
    except ValueError:
        return None
    return read[1] if isinstance(read, tuple) else None


def _option(where: str, identity: str, answer: Any) -> int:
    if isinstance(answer, str) and len(answer) == 1 and answer in LETTERS:
        return LETTERS.index(answer)
    if isinstance(answer, str) and answer.isdecimal():
        answer = int(answer)
    if type(answer) is int and 0 <= answer < len(LETTERS):
        return answer
    raise UserError(
        f"{where}: answer to question {identity!r}: got {str(answer)[:20]!r}, expected a letter "
        f"from A to {LETTERS[-1]} or an integer in [0, {len(LETTERS) - 1}]"
    )
