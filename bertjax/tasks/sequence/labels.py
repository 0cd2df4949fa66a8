"""Labels of a table: their problem type, the names of the classes, and arrays of them."""

import collections
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Num

from bertjax.errors import UserError, nearest
from bertjax.metrics.sequences import MULTI_LABEL, REGRESSION, SINGLE_LABEL

_MAX_LISTED = 100
"""Number of classes that are listed."""
_MIN_NUMBERS = 0.9
"""Share of numbers among labels from which others are taken for mistakes."""
_MISSING = ("", "-", "?", "na", "n/a", "nan", "null")
_WHOLE = re.compile(r"^([+-]?\d+)\.0+$")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?")
_AS_CLASSES = "set --config.task.problem_type=single_label_classification"


def find_problem_type(values: Sequence[Any], separator: str) -> str:
    """Infers the problem type from the labels.

    Lists, or texts with a separator, are several labels per example; numbers of which at least one
    has a fractional part are scores; all others, whole numbers as well, are classes.

    Args:
      values: Values of the label column of the training examples.
      separator: Text between the labels of a cell; "" for none.
    """
    if separator or any(isinstance(value, list) for value in values):
        return MULTI_LABEL
    numbers = [_number(value) for value in values]
    if None in numbers or all(number.is_integer() for number in numbers):
        return SINGLE_LABEL
    return REGRESSION


def check_not_scores(values: Sequence[Any], locations: Sequence[str]) -> None:
    """Refuses scores with some invalid cells, which would be the names of many classes.

    Args:
      values: Labels that `find_problem_type` takes for classes.
      locations: The location of each, for error messages.

    Raises:
      UserError: nearly all labels are numbers, some not whole, or all others are marks of missing
        values; or all are numbers of which some have a decimal comma.
    """
    numbers = [_number(value) for value in values]
    found = [number for number in numbers if number is not None]
    others = [index for index, number in enumerate(numbers) if number is None]
    cells = [_name(value) for value in values]
    is_missing = all(cells[index].lower() in _MISSING for index in others)
    is_score = any(not number.is_integer() for number in found)
    if others and is_score and (is_missing or len(found) >= _MIN_NUMBERS * len(values)):
        raise UserError(
            f"{locations[others[0]]}: label: got {cells[others[0]]!r}, expected a number as in "
            f"{len(found):,} of {len(values):,} rows, of which some are not whole; fix or remove "
            f"the row, or for classes {_AS_CLASSES}"
        )
    commas = [index for index, cell in enumerate(cells) if "," in cell]
    if commas and all(map(_DECIMAL_COMMA.fullmatch, cells)):
        cell = cells[commas[0]]
        raise UserError(
            f"{locations[commas[0]]}: label: got {cell!r}, which looks like a number with a "
            f"decimal comma, expected {cell.replace(',', '.')}; replace the commas, or for several "
            f"labels per cell set --config.data.label_separator=',', or for classes {_AS_CLASSES}"
        )


def are_hidden(values: Sequence[Any]) -> bool:
    """Whether the labels of a test split are placeholders: all missing, empty or -1.

    Lists and objects are placeholders if all of their elements are, such as
    `{"text": [], "answer_start": []}`.
    """
    return all(map(_is_hidden, values))


def _is_hidden(value: Any) -> bool:
    if isinstance(value, Mapping):
        return are_hidden([*value.values()])
    if isinstance(value, list):
        return are_hidden(value)
    return _name(value) in ("", "-1")


def names_of(value: Any, problem_type: str, separator: str, location: str) -> list[str]:
    """Returns the names of the classes of a cell: one, or any number for several labels.

    Raises:
      UserError: the label is empty or binary, or a list where one label is expected.
    """
    if any(isinstance(each, bytes) for each in (value if isinstance(value, list) else [value])):
        raise UserError(f"{location}: label: got bytes that are not UTF-8, expected a text")
    if problem_type == MULTI_LABEL and not _is_missing(value):
        if not isinstance(value, list):
            value = str(value).split(separator) if separator else [value]
        return [name for name in map(_name, value) if name]
    if isinstance(value, list):
        raise UserError(
            f"{location}: label: got the list {value}, expected one label; leave "
            f"config.task.problem_type={problem_type} out"
        )
    name = _name(value)
    if not name:
        raise UserError(f"{location}: the label is empty, expected a class; fix or remove the row")
    return [name]


def _name(value: Any) -> str:
    """Returns the name of a class: booleans as in JSON, whole numbers without a fraction."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if _is_missing(value) else str(value).strip()


def _is_missing(value: Any) -> bool:
    """Whether a value is None, or NaN as pandas writes for None in columns of numbers."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def class_names(found: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Returns the distinct names in order, that of numbers if all are whole numbers.

    If all are numbers, 1.0 is another spelling of 1.
    """
    names = sorted({name for names in found for name in names})
    if all(_number(name) is not None for name in names):
        names = sorted({_WHOLE.sub(r"\1", name) for name in names})
    try:
        return tuple(sorted(names, key=int))
    except ValueError:
        return tuple(names)


def to_array(
    found: Sequence[Sequence[str]],
    labels: Sequence[str],
    problem_type: str,
    locations: Sequence[str],
) -> Num[np.ndarray, "n *more"]:
    """Converts names of classes to indices, or for several labels to 0 or 1 for each class.

    If all labels are numbers, 1.0 is another spelling of 1, unless both are labels.

    Raises:
      UserError: a name is not among the labels.
    """
    known = {label: number for number, label in enumerate(labels)}
    if all(_number(label) is not None for label in labels):
        spelled = {name: _WHOLE.sub(r"\1", name) for names in found for name in names}
        known = {name: known[whole] for name, whole in spelled.items() if whole in known} | known
    for names, location in zip(found, locations, strict=True):
        for name in names:
            if name not in known:
                raise UserError(
                    f"{location}: label: got {name!r}, which no training example has; "
                    f"{nearest(name, labels)}; fix the row, or add it to the training examples"
                )
    if problem_type == SINGLE_LABEL:
        return np.array([known[names[0]] for names in found], np.int32)
    array = np.zeros((len(found), len(labels)), np.int8)
    for row, names in enumerate(found):
        array[row, [known[name] for name in names]] = 1
    return array


def to_scores(
    values: Sequence[Any], locations: Sequence[str], remedy: str = ""
) -> Num[np.ndarray, " n"]:
    """Converts the labels of a regression.

    Args:
      values: The labels.
      locations: The location of each, for error messages.
      remedy: Further advice about a label that is not a number, in messages.

    Raises:
      UserError: a label is not a finite number.
    """
    numbers = [_number(value) for value in values]
    for number, value, location in zip(numbers, values, locations, strict=True):
        if number is None:
            raise UserError(
                f"{location}: label: got {value!r}, expected a number; fix the row{remedy}"
            )
    return np.array(numbers, np.float32)


def _number(value: Any) -> float | None:
    if isinstance(value, bool | list):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def loss_weights(
    array: Num[np.ndarray, "n *more"], labels: Sequence[str], given: Sequence[str]
) -> tuple[float, ...]:
    """Returns the weight of each class in the loss; none if all are 1.

    "balanced" is n / (C n_c) for one label per example, so that all classes have the same total
    weight, and for several the number of examples without the label per example with it; 1 for a
    label that all examples have, which would not be learned with a weight of 0.

    Args:
      array: Labels of the training examples, of `to_array`.
      labels: Names of the classes.
      given: `config.task.class_weights`.

    Raises:
      UserError: a name is not among the labels, or the options contradict each other.
    """
    if not given:
        return ()
    if "balanced" in given and len(given) > 1:
        raise UserError(
            f"config.task.class_weights: got {given}, expected 'balanced' alone, or LABEL=WEIGHT"
        )
    if "balanced" in given:
        size = len(array)
        if array.ndim == 2:
            counts = array.sum(axis=0, dtype=np.int64)
            weights_C = (size - counts) / np.maximum(counts, 1)
            return tuple(np.where(counts < size, weights_C, 1.0).tolist())
        counts = np.bincount(array, minlength=len(labels))
        return tuple((size / (len(labels) * np.maximum(counts, 1))).tolist())
    weights = dict.fromkeys(labels, 1.0)
    for entry in given:
        name, _, weight = entry.rpartition("=")
        if name not in weights:
            raise UserError(
                f"config.task.class_weights: got {entry!r}, expected the name of a class; "
                f"{nearest(name, labels)}"
            )
        weights[name] = float(weight)
    return tuple(weights.values())


def describe(array: Num[np.ndarray, "n *more"], labels: Sequence[str]) -> str:
    """Returns the number of examples of each class, or the range of scores."""
    if not labels:
        return f"mean {array.mean():.4g}, from {array.min():.4g} to {array.max():.4g}"
    counts = (
        array.sum(axis=0, dtype=np.int64)
        if array.ndim == 2
        else np.bincount(array, minlength=len(labels))
    )
    by_label = collections.Counter(dict(zip(labels, counts.tolist(), strict=True)))
    listed = [f"{label} {count:,}" for label, count in by_label.most_common(_MAX_LISTED)]
    more = f" and {len(labels) - _MAX_LISTED} more" if len(labels) > _MAX_LISTED else ""
    return f"{', '.join(listed)}{more}"
