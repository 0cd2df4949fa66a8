"""Build the runs of a sweep: every run is a dict of dotted config fields and their values.

    product({"optimizer.learning_rate": (1e-3, 3e-3), "seed": (0, 1)})                  four runs
    zip_fields({"model.hidden_size": (128, 256), "model.num_attention_heads": (2, 4)})  two
    random_search(20, {"optimizer.learning_rate": log_uniform(1e-4, 1e-2)}, seed=0)     twenty

All return lists of dicts, which may also be written by hand and concatenated with `+`. `product`
accepts such lists as well as tables of values, so that grids nest.

The name of a run, which is also the name of its folder, lists only the fields that differ.
"""

import hashlib
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bertjax.errors import UserError

Point = dict[str, Any]
"""The fields in which a run differs from the config, and their values."""

Draw = Callable[[random.Random], Any]


def product(*parts: Mapping[str, Iterable[Any]] | Sequence[Point]) -> list[Point]:
    """Cartesian product of fields and lists of runs; the last field varies fastest.

    Args:
      *parts: Tables of values by field, or lists of runs.

    Raises:
      UserError: a field is in two parts.
    """
    axes = [axis for part in parts for axis in _axes(part)]
    return [_merge(points) for points in itertools.product(*axes)]


def zip_fields(table: Mapping[str, Iterable[Any]]) -> list[Point]:
    """Runs with the first value of each field, the second value of each, and so on.

    Raises:
      UserError: the fields have different numbers of values.
    """
    columns = {name: tuple(values) for name, values in table.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(
            f"zip_fields: got {lengths} values, expected the same number for each field; add or "
            "remove values"
        )
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def random_search(count: int, table: Mapping[str, Draw], *, seed: int) -> list[Point]:
    """Runs with randomly sampled values; with a larger count, the first runs stay the same.

    Args:
      count: Number of runs.
      table: How each field is sampled: `uniform`, `log_uniform`, `integers`, `choice`.
      seed: Seed of the random generator: the same seed gives the same runs.
    """
    generator = random.Random(seed)
    return [{name: draw(generator) for name, draw in table.items()} for _ in range(count)]


def uniform(low: float, high: float) -> Draw:
    """Samples a number uniformly, rounded to three significant digits."""
    return lambda generator: _round(generator.uniform(low, high))


def log_uniform(low: float, high: float) -> Draw:
    """Samples a number whose logarithm is uniform, rounded to three significant digits."""
    return lambda generator: _round(math.exp(generator.uniform(math.log(low), math.log(high))))


def integers(low: int, high: int) -> Draw:
    """Samples an integer from `low` to `high`, both included."""
    return lambda generator: generator.randint(low, high)


def choice(*values: Any) -> Draw:
    """Samples one of the values."""
    return lambda generator: generator.choice(values)


def _round(value: float) -> float:
    """Three significant digits, so that the name of a run has the exact value."""
    return float(f"{value:.3g}")


def _axes(part: Mapping[str, Iterable[Any]] | Sequence[Point]) -> list[list[Point]]:
    if isinstance(part, Mapping):
        return [[{name: value} for value in values] for name, values in part.items()]
    return [list(part)]


def _merge(points: Iterable[Point]) -> Point:
    merged: Point = {}
    for point in points:
        if both := merged.keys() & point.keys():
            raise UserError(
                f"product: {', '.join(sorted(both))} is in two parts; leave it out of one of them"
            )
        merged |= point
    return merged


NAME = "name"
"""Key of a run next to its fields: its own name."""

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]*")
_MAX_NAME_LENGTH = 150
_MAX_LABEL_LENGTH = 40  # pods of GKE allow 63, of which JobSet needs some for its suffixes


def names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each run: `learning_rate=3e-3,seed=1`.

    Fields with the same value in all runs are left out. Dotted names of fields are shortened to
    the end that distinguishes them.

    Raises:
      UserError: two runs have the same name, or a name is not valid as a folder.
    """
    fields = dict.fromkeys(name for point in points for name in point if name != NAME)
    differing = [name for name in fields if len(points) == 1 or _differs(name, points)]
    short = _short_names(differing)
    found = [point.get(NAME) or _name(point, short) for point in points]
    for name in found:
        _check(name)
    twice = [number for number, name in enumerate(found) if name in found[:number]]
    if twice:
        number, name = twice[0], found[twice[0]]
        raise UserError(
            f"runs {found.index(name) + 1} and {number + 1} are both named {name!r}: leave one "
            f"out, or set its {NAME!r}"
        )
    return found


def _differs(name: str, points: Sequence[Mapping[str, Any]]) -> bool:
    return len({repr(point.get(name, ...)) for point in points}) > 1


def _short_names(fields: Sequence[str]) -> dict[str, str]:
    """The shortest ends of dotted names that distinguish them."""
    ends = dict.fromkeys(fields, 1)

    def end(name: str) -> str:
        return ".".join(name.split(".")[-ends[name] :])

    while True:
        count = Counter(map(end, fields))
        longer = [name for name in fields if count[end(name)] > 1 and end(name) != name]
        if not longer:
            return {name: end(name) for name in fields}
        for name in longer:
            ends[name] += 1


def _name(point: Mapping[str, Any], short: Mapping[str, str]) -> str:
    parts = [f"{short[name]}={value_text(point[name])}" for name in short if name in point]
    return ",".join(parts) or "base"


def value_text(value: Any) -> str:
    """A value in the name of a run: 3e-3, true, 16-32; the last part of a path."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, tuple | list):
        return "-".join(map(value_text, value)) or "none"
    text = str(value).rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-" if isinstance(value, str) else "")


def _number(value: float) -> str:
    """The shortest text of a number: 0.15, 3e-3, 1e5."""
    plain = repr(value).removesuffix(".0")
    if not math.isfinite(value):
        return plain
    written = (f"{value:.{digits}e}" for digits in range(17))
    mantissa, _, exponent = next(text for text in written if float(text) == value).partition("e")
    short = f"{mantissa}e{int(exponent)}"
    return short if len(short) < len(plain) else plain


def labels(sweep: str, names: Sequence[str]) -> dict[str, str]:
    """A distinct job name for each run of a sweep, by name of the run.

    Args:
      sweep: The name of the sweep.
      names: The names of all of its runs.
    """
    found = {name: label(sweep, name) for name in names}
    count = Counter(found.values())
    return {name: label(sweep, name, add_digest=count[text] > 1) for name, text in found.items()}


def label(*names: str, add_digest: bool = False) -> str:
    """A job name for clusters: lowercase letters, digits and hyphens, at most 40 characters.

    Args:
      *names: The names of the sweep and of the run.
      add_digest: Whether to append a digest of the names, as to the label of long names; without
        it the labels of different names, such as x=1 and x=-1, may be equal.
    """
    text = re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-")
    text = text if text[:1].isalpha() else f"run-{text}"
    if len(text) <= _MAX_LABEL_LENGTH and not add_digest:
        return text
    digest = hashlib.sha256("/".join(names).encode()).hexdigest()[:6]
    return f"{text[: _MAX_LABEL_LENGTH - 7].rstrip('-')}-{digest}"


def _check(name: str) -> None:
    if not isinstance(name, str) or not _SAFE.fullmatch(name):
        raise UserError(
            f"name of a run: got {name!r}, expected letters, digits and . _ + = , - that form the "
            f"name of a folder; set its {NAME!r}"
        )
    if len(name) > _MAX_NAME_LENGTH:
        raise UserError(
            f"name of the run {name[:40]!r}...: got {len(name)} characters, expected at most "
            f"{_MAX_NAME_LENGTH}; set its {NAME!r}"
        )
