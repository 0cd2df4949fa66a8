"""Which runs a sweep has, in plain Python: every run is a dict of dotted fields and their values.

    product({"optimizer.learning_rate": (1e-3, 3e-3), "seed": (0, 1)})         four runs
    zipped({"model.hidden_size": (128, 256), "model.num_attention_heads": (2, 4)})      two
    draws(20, {"optimizer.learning_rate": log_uniform(1e-4, 1e-2)}, seed=0)     twenty

What they return are lists: `+` puts one behind the other, and a list that is written by hand is as
good. `product` takes such lists as well as tables of values, so that grids nest.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bertjax.errors import UserError

Point = dict[str, Any]
"""The fields in which a run differs from the config, and their values."""

Draw = Callable[[random.Random], Any]


def product(*parts: Mapping[str, Iterable[Any]] | Sequence[Point]) -> list[Point]:
    """Everything with everything; the last field changes fastest.

    Args:
      *parts: tables of values by field, or runs that were made before.

    Raises:
      UserError: a field is in two parts.
    """
    axes = [axis for part in parts for axis in _axes(part)]
    return [_merged(points) for points in itertools.product(*axes)]


def zipped(table: Mapping[str, Iterable[Any]]) -> list[Point]:
    """The first values together, the second together, and so on.

    Raises:
      UserError: there are not equally many of each.
    """
    columns = {name: tuple(values) for name, values in table.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"zipped wants equally many values of each field, got {lengths}")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def draws(count: int, table: Mapping[str, Draw], *, seed: int) -> list[Point]:
    """So many runs with values drawn at random; more of them begin with the same ones.

    Args:
      count: How many.
      table: How each field is drawn: `uniform`, `log_uniform`, `integers`, `choice`.
      seed: Of the draws: the same seed gives the same runs.
    """
    generator = random.Random(seed)
    return [{name: draw(generator) for name, draw in table.items()} for _ in range(count)]


def uniform(low: float, high: float) -> Draw:
    """A number between two, to three digits."""
    return lambda generator: _rounded(generator.uniform(low, high))


def log_uniform(low: float, high: float) -> Draw:
    """A number between two whose logarithm is uniform, to three digits: for rates."""
    return lambda generator: _rounded(math.exp(generator.uniform(math.log(low), math.log(high))))


def integers(low: int, high: int) -> Draw:
    """A whole number from `low` to `high`, both of them too."""
    return lambda generator: generator.randint(low, high)


def choice(*values: Any) -> Draw:
    """One of these."""
    return lambda generator: generator.choice(values)


def _rounded(value: float) -> float:
    """So that the name of a run says all of its value."""
    return float(f"{value:.3g}")


def _axes(part: Mapping[str, Iterable[Any]] | Sequence[Point]) -> list[list[Point]]:
    if isinstance(part, Mapping):
        return [[{name: value} for value in values] for name, values in part.items()]
    return [list(part)]


def _merged(points: Iterable[Point]) -> Point:
    merged: Point = {}
    for point in points:
        if both := merged.keys() & point.keys():
            raise UserError(f"product: {', '.join(sorted(both))} is in two parts")
        merged |= point
    return merged
