"""Read the released SuperGLUE files; write and read prediction files of its evaluation server."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.io.files import write_output
from bertjax.io.lines import read_json_lines
from bertjax.tasks.superglue.answers import AnswerKind, Predictions
from bertjax.tasks.superglue.records import Examples, Key, Row
from bertjax.tasks.superglue.table import TASKS, SuperGlueSplit, SuperGlueTask


def read(data: str, task: SuperGlueTask) -> dict[str, Examples]:
    """Reads the available splits of a task, by name.

    Args:
      data: The folder with `BoolQ/`, `CB/` ... of the released archive.
      task: The task.

    Raises:
      UserError: a required file is missing, or a record is malformed.
    """
    folder = pathlib.Path(data) / task.folder
    if not folder.is_dir():
        known = [other.folder for other in TASKS if (pathlib.Path(data) / other.folder).is_dir()]
        found = ", ".join(known) or "no SuperGLUE task"
        raise UserError(
            f"no {task.folder}/ in {data} (found {found}): --data "
            f"expects the folder with {task.folder}/train.jsonl, val.jsonl and test.jsonl"
        )
    splits = {}
    for split in task.splits:
        path = folder / split.file
        if path.is_file():
            splits[split.name] = _read(path, split)
        elif split.required:
            raise UserError(
                f"no {split.file} in {folder}: {task.name} requires its {split.name} split; copy "
                "the released file there"
            )
    return splits


def read_file(path: str | pathlib.Path, task: SuperGlueTask) -> Examples:
    """Reads one file from any folder; a diagnostic test set is known by its file name.

    Raises:
      UserError: the file is missing, or a record is malformed.
    """
    split = dataclasses.replace(reference_split(path, task), required=False)
    return _read(pathlib.Path(path), split)


def reference_split(path: str | pathlib.Path, task: SuperGlueTask) -> SuperGlueSplit:
    """Returns the split whose layout a file has: that with its name, else dev."""
    name = pathlib.Path(path).name
    named = (split for split in task.splits if pathlib.Path(split.file).name == name)
    return next(named, task.split("dev"))


def _read(path: pathlib.Path, split: SuperGlueSplit) -> Examples:
    expected = "one JSON object per line, as in the released SuperGLUE files"

    def parse(line: str, where: str) -> list[Row]:
        return list(split.read(where, _object(where, line), split.answers.labels))

    rows = [row for rows in read_json_lines(str(path), parse, expected) for row in rows]
    if not rows:
        raise UserError(f"{path} has no questions: expected one or more")
    _check(rows, required=split.required)
    return Examples(rows)


def _check(rows: list[Row], *, required: bool) -> None:
    """Checks that all rows have labels or none has, and that keys are distinct."""
    locations: dict[tuple[Key, str], str] = {}
    labelled = required or rows[0].label is not None
    for row in rows:
        if (row.label is not None) != labelled:
            raise UserError(
                f"{row.where}: got {'no' if labelled else 'a'} label, expected labels in all "
                f"records of this split{'' if required else ', or in none'}; copy the released "
                "file again"
            )
        name = row.key, row.candidate
        if name in locations:
            raise UserError(
                f"{row.where}: idx {'/'.join(map(str, row.key))} occurs at {locations[name]} too; "
                "remove one"
            )
        locations[name] = row.where


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{where}: got {line[:60]!r}, expected one JSON object; fix the line")
    return found


def write_predictions(path: pathlib.Path, answers: AnswerKind, predictions: Predictions) -> None:
    """Writes one JSON object per line, such as `{"idx": 0, "label": "true"}`.

    Args:
      path: The file to write.
      answers: The kind of the answers.
      predictions: The answers by key of the examples.

    Raises:
      UserError: the file cannot be written.
    """
    lines = [json.dumps(record, ensure_ascii=False) for record in answers.records(predictions)]
    write_output(path, "\n".join(lines) + "\n")


def read_predictions(path: str | pathlib.Path, answers: AnswerKind) -> Mapping[Key, Any]:
    """Reads a prediction file: the answers by key of the examples.

    Raises:
      UserError: a line is malformed, or an example occurs twice.
    """
    found: dict[Key, Any] = {}

    def parse(line: str, where: str) -> None:
        for key, value in answers.parse(where, _object(where, line)):
            if key in found:
                raise UserError(
                    f"{where}: idx {'/'.join(map(str, key))} occurs twice; remove one line"
                )
            found[key] = value

    read_json_lines(str(path), parse, "a prediction file of SuperGLUE's evaluation server")
    return found
