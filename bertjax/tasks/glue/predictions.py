"""Read and write predictions in the format of GLUE's evaluation server."""

import math
import pathlib

import numpy as np
from jaxtyping import Num

from bertjax.errors import UserError
from bertjax.io import files as io_files
from bertjax.io.lines import read_text_lines
from bertjax.tasks.glue.table import HIGHEST_SCORE, GlueTask

HEADER = "index\tprediction"


def write(
    path: pathlib.Path, task: GlueTask, indices: list[str], predictions: Num[np.ndarray, " n"]
) -> None:
    """Writes class labels in the server's spelling, or scores clipped to [0, 5], 3 decimals.

    Args:
      path: The file to write.
      task: The task.
      indices: The index of each example on the evaluation server.
      predictions: Class indices, or scores of a regression.

    Raises:
      UserError: the file cannot be written.
    """
    if len(indices) != len(predictions):
        raise ValueError(f"{len(predictions)} predictions for {len(indices)} examples")
    if task.labels:
        spelled = [task.labels[value] for value in predictions.tolist()]
    else:
        spelled = [f"{value:.3f}" for value in np.clip(predictions, 0.0, HIGHEST_SCORE).tolist()]
    lines = [HEADER, *map("\t".join, zip(indices, spelled, strict=True))]
    io_files.write_output(path, "\n".join(lines) + "\n")


def read(path: str | pathlib.Path, task: GlueTask) -> dict[str, float]:
    """Reads a prediction file: the class index, or the score, of each example by its index.

    Raises:
      UserError: the header or a line is malformed, or an index occurs twice.
    """
    found: dict[str, float] = {}
    locations: dict[str, str] = {}
    rows = read_text_lines(str(path))
    where, header = next(rows, (f"{path}:1", ""))
    if header != HEADER:
        raise UserError(
            f"{where}: got {header[:60]!r}, expected the header line of GLUE's evaluation server: "
            "index, a tab, prediction"
        )
    for where, line in rows:
        if not line.strip():
            continue
        index, tab, spelled = line.partition("\t")
        if not tab or "\t" in spelled:
            raise UserError(
                f"{where}: got {line[:60]!r}, expected index and prediction separated by a tab"
            )
        if index in locations:
            raise UserError(
                f"{where}: index {index!r} occurs at {locations[index]} too; remove one line"
            )
        locations[index] = where
        found[index] = _value(where, spelled, task)
    return found


def _value(where: str, spelled: str, task: GlueTask) -> float:
    if task.labels:
        if spelled not in task.labels:
            raise UserError(
                f"{where}: prediction: got {spelled!r}, expected one of {', '.join(task.labels)}"
            )
        return task.labels.index(spelled)
    try:
        value = float(spelled)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where}: prediction: got {spelled!r}, expected a number in [0, 5]")
    return value
