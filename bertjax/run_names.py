"""Names of a sweep's runs, which are their folders too: only what differs, short, readable."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError

NAME = "name"
"""Beside its fields, a run may bring a name of its own."""

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]*")
_LONGEST = 150
_LONGEST_LABEL = 40  # pods of GKE have 63, of which JobSet wants some for numbers


def names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each run: `learning_rate=3e-3,seed=1`.

    Fields that all runs share are left out, and of a field as much of its dotted name as is needed
    to tell it from the others.

    Raises:
      UserError: two runs have one name, or a name cannot be a folder's.
    """
    fields = dict.fromkeys(name for point in points for name in point if name != NAME)
    differing = [name for name in fields if len(points) == 1 or _differs(name, points)]
    short = _short(differing)
    found = [point.get(NAME) or _name(point, short) for point in points]
    for name in found:
        _check(name)
    twice = [number for number, name in enumerate(found) if name in found[:number]]
    if twice:
        number, name = twice[0], found[twice[0]]
        raise UserError(
            f"runs {found.index(name) + 1} and {number + 1} are both named {name!r}: leave one "
            f"out, or give it a {NAME!r} of its own"
        )
    return found


def _differs(name: str, points: Sequence[Mapping[str, Any]]) -> bool:
    return len({repr(point.get(name, ...)) for point in points}) > 1


def _short(fields: Sequence[str]) -> dict[str, str]:
    """The shortest ends of dotted names that are different."""
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
    """A value as a part of a name: 3e-3, true, 16-32; of a path its last part."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, tuple | list):
        return "-".join(map(value_text, value)) or "none"
    text = str(value).rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-" if isinstance(value, str) else "")


def _number(value: float) -> str:
    """The shortest way to write it: 0.15, 3e-3, 1e5."""
    plain = repr(value).removesuffix(".0")
    if not math.isfinite(value):
        return plain
    written = (f"{value:.{digits}e}" for digits in range(17))
    mantissa, _, exponent = next(text for text in written if float(text) == value).partition("e")
    short = f"{mantissa}e{int(exponent)}"
    return short if len(short) < len(plain) else plain


def label(*names: str) -> str:
    """A name for a cluster, where only small letters, digits and hyphens count, 40 at most."""
    text = re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-")
    text = text if text[:1].isalpha() else f"run-{text}"
    if len(text) <= _LONGEST_LABEL:
        return text
    digest = hashlib.sha256("/".join(names).encode()).hexdigest()[:6]
    return f"{text[: _LONGEST_LABEL - 7].rstrip('-')}-{digest}"


def _check(name: str) -> None:
    if not isinstance(name, str) or not _SAFE.fullmatch(name):
        raise UserError(
            f"the run {name!r} wants a name of letters, digits and . _ + = , - that can be a "
            f"folder's: give it a {NAME!r}"
        )
    if len(name) > _LONGEST:
        raise UserError(
            f"the name of the run {name[:40]!r}... has {len(name)} characters, {_LONGEST} is the "
            f"most: give it a {NAME!r}"
        )
