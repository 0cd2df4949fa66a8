"""Prediction files of cross-lingual benchmarks: language, number in its language, and class."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.io.files import write_output
from bertjax.io.lines import read_text_lines

HEADER = "language\tindex\tprediction"


def write(
    path: pathlib.Path, languages: Sequence[str], indices: Sequence[str], classes: Sequence[str]
) -> None:
    """Writes a line for each example: its language, its number in that language, and its class.

    Raises:
      UserError: the file cannot be written.
    """
    rows = zip(languages, indices, classes, strict=True)
    write_output(path, "\n".join([HEADER, *map("\t".join, rows)]) + "\n")


def read(path: str, labels: Sequence[str]) -> Mapping[str, int]:
    """Reads a prediction file: the class index of each example by `LANGUAGE/NUMBER`.

    Raises:
      UserError: the header or a line is malformed, or an example occurs twice.
    """
    lines = read_text_lines(path)
    where, header = next(lines, (f"{path}:1", ""))
    if header != HEADER:
        raise UserError(
            f"{where}: got {header[:60]!r}, expected the header line language, index, prediction "
            "separated by tabs, as bertjax finetune writes it"
        )
    found: dict[str, int] = {}
    for where, line in lines:
        if not line.strip():
            continue
        language, *rest = line.split("\t")
        if len(rest) != 2 or rest[1] not in labels:
            raise UserError(
                f"{where}: got {line[:60]!r}, expected language, index and one of "
                f"{', '.join(labels)}, separated by tabs"
            )
        key = f"{language}/{rest[0]}"
        if key in found:
            raise UserError(f"{where}: example {key!r} occurs twice; remove one line")
        found[key] = labels.index(rest[1])
    return found


def score(
    languages: Sequence[str], chosen: Sequence[int], labels: Sequence[int]
) -> dict[str, float]:
    """Returns `LANGUAGE_accuracy` for each language, and their mean, `accuracy`."""
    names, right = np.array(languages), np.asarray(chosen) == np.asarray(labels)
    found = {
        f"{language}_accuracy": float(right[names == language].mean())
        for language in sorted(set(languages))
    }
    return {"accuracy": float(np.mean(list(found.values()))), **found}
