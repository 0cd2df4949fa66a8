"""Constraints on the values of fields and flags, declared in their types.

    masked_lm_prob: PositiveShare = 0.15
    hidden_act: Annotated[str, OneOf(ACTIVATIONS)] = "gelu"
    add("--seeds", action=constraint_action(PositiveInt), default=1)

Every field of a config has such a type: fields of modules in the module, all others in
`validation/schema.py` and `tasks/NAME/dataset.py`. NaN and infinity are not valid
numbers, True is not a valid integer.
"""

import argparse
import dataclasses
import functools
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

from bertjax.errors import UserError, nearest

INT32_MAX = 2**31 - 1
"""Counts are 32-bit integers on the device."""

_MAX_SHOWN = 80
"""Characters of a value in a message."""


@runtime_checkable
class Constraint(Protocol):
    """Metadata of the `Annotated` type of a field."""

    def violation(self, value: Any) -> str | None:
        """Returns "expected ..." for an invalid value, else None."""
        ...


@dataclasses.dataclass(frozen=True)
class Number:
    """A finite number within bounds.

    Attributes:
      low: Lower bound.
      high: Upper bound.
      open_low: Whether `low` itself is excluded.
      open_high: Whether `high` itself is excluded.
      noun: "a number", "an integer" or "a share", in messages.
      meaning: The meaning of a special value, in messages.
      integer: Whether it must be an int.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    noun: str = "a number"
    meaning: str = ""
    integer: bool = False

    def violation(self, value: Any) -> str | None:
        kinds = int if self.integer else int | float
        if not isinstance(value, kinds) or isinstance(value, bool):
            return self._expected(value)
        if not abs(value) <= sys.float_info.max:  # neither is NaN
            return self._expected(value)
        above = value > self.low or (value == self.low and not self.open_low)
        below = value < self.high or (value == self.high and not self.open_high)
        return None if above and below else self._expected(value)

    def _expected(self, value: Any) -> str:
        meaning = f" ({self.meaning})" if self.meaning else ""
        return f"expected {self.noun}{self._range(value)}{meaning}"

    def _range(self, value: Any) -> str:
        high = self.high
        if high == INT32_MAX and not (isinstance(value, int) and value > high):
            high = math.inf  # a limit of the device, shown only where it is exceeded
        if math.isinf(self.low) and math.isinf(high):
            return ""
        if math.isinf(high):
            return f" {'>' if self.open_low else '>='} {self.low:g}"
        ends = "(" if self.open_low else "[", ")" if self.open_high else "]"
        top = str(high) if self.integer else f"{high:g}"
        return f" in {ends[0]}{self.low:g}, {top}{ends[1]}"


class OneOf:
    """One of several names."""

    def __init__(self, names: typing.Iterable[str]):
        self.names = tuple(names)

    def violation(self, value: Any) -> str | None:
        if isinstance(value, str) and value in self.names:
            return None
        named = ", ".join(repr(name) for name in self.names)
        hint = nearest(value, self.names) if isinstance(value, str) else ""
        if not hint.startswith("did you mean"):
            return f"expected one of {named}"
        return f"expected one of {named}; {hint}"


class Text:
    """Any text, such as a path; "" where the documentation of the field permits it."""

    def violation(self, value: Any) -> str | None:
        return None if isinstance(value, str) else "expected text"


class NotEmpty:
    """A sequence with at least one element."""

    def violation(self, value: Any) -> str | None:
        return None if value else "expected at least one element"


def integer(low: int, high: int = INT32_MAX, meaning: str = "") -> Number:
    """An int from `low` to `high`, both included."""
    return Number(low, high, noun="an integer", meaning=meaning, integer=True)


def share(*, open_low: bool = False, open_high: bool = False, meaning: str = "") -> Number:
    """A number between 0 and 1."""
    return Number(0.0, 1.0, open_low, open_high, "a share", meaning)


PositiveInt = Annotated[int, integer(1)]
NonNegativeInt = Annotated[int, integer(0)]
PositiveFloat = Annotated[float, Number(0.0, open_low=True)]
NonNegativeFloat = Annotated[float, Number(0.0)]
Finite = Annotated[float, Number()]
LearningRate = Annotated[float, Number(0.0, 1.0)]
"""Adam's direction has elements near 1: a learning rate of 1 changes a parameter by 1 in a step."""
Share = Annotated[float, share()]
PositiveShare = Annotated[float, share(open_low=True)]
OpenShare = Annotated[float, share(open_low=True, open_high=True)]
ShareBelowOne = Annotated[float, share(open_high=True)]
DropoutRate = Annotated[float, share(open_high=True, meaning="0 drops nothing")]
Weight = Annotated[float, Number(0.0, meaning="0 measures without training")]
Epsilon = Annotated[float, Number(0.0, 1.0, open_low=True, open_high=True)]
InitStddev = Annotated[float, Number(0.0, 1.0, open_low=True)]
Seed = Annotated[int, integer(0, 2**32 - 1)]
TokenId = NonNegativeInt
AnyText = Annotated[str, Text()]
Name = Annotated[str, Text()]


@dataclasses.dataclass(frozen=True)
class Relation:
    """A constraint between several fields of a module or section.

    Attributes:
      fields: Their names.
      holds: The predicate on their values, in this order.
      expected: Describes it in messages.
      remedy: What the user can do, in messages; a text, or a function of the values.
    """

    fields: tuple[str, ...]
    holds: Callable[..., bool]
    expected: str
    remedy: str | Callable[..., str] = "change one of them"


@functools.cache  # reading annotations takes most of the time of a check
def fields_of(schema: type) -> Mapping[str, Any]:
    """The declared types of the fields of a Linen module, dataclass or plain class."""
    if dataclasses.is_dataclass(schema):
        hidden = ("parent", "name")
        # Keyword-only fields are those of a base class, which `fields` has before a class's own.
        fields = sorted(dataclasses.fields(schema), key=lambda field: field.kw_only)
        found = {f.name: f.type for f in fields if f.name not in hidden}
    else:
        found = typing.get_type_hints(schema, include_extras=True)
    return types.MappingProxyType(found)


def is_declared(hint: Any) -> bool:
    """Whether a type has a constraint; a bare int, float or str has none."""
    if typing.get_origin(hint) is Annotated:
        return any(isinstance(part, Constraint) for part in typing.get_args(hint)[1:])
    parts = [part for part in typing.get_args(hint) if part is not Ellipsis]
    if typing.get_origin(hint) is tuple or _is_union(hint):
        return all(part is types.NoneType or is_declared(part) for part in parts)
    return hint is bool


def violation(hint: Any, value: Any) -> str | None:
    """Returns "expected ..." for a value that violates a declared type, else None."""
    if typing.get_origin(hint) is Annotated:
        base, *more = typing.get_args(hint)
        first = violation(base, value) if typing.get_origin(base) is tuple else None
        found = (part.violation(value) for part in more if isinstance(part, Constraint))
        return first or next(filter(None, found), None)
    if _is_union(hint):
        return _violation_of_union(typing.get_args(hint), value)
    if typing.get_origin(hint) is tuple:
        return _violation_of_tuple(typing.get_args(hint), value)
    if hint is bool and not isinstance(value, bool):
        return "expected true or false"
    return None


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _violation_of_union(hints: Sequence[Any], value: Any) -> str | None:
    if value is None and types.NoneType in hints:
        return None
    found = [violation(hint, value) for hint in hints if hint is not types.NoneType]
    if None in found:
        return None
    return " or ".join([*dict.fromkeys(found), *(["none"] if types.NoneType in hints else [])])


def _violation_of_tuple(hints: Sequence[Any], value: Any) -> str | None:
    if not isinstance(value, tuple | list):
        return "expected a tuple"
    if hints[-1:] == (Ellipsis,):
        hints = hints[:1] * len(value)
    if len(hints) != len(value):
        return f"expected {len(hints)} elements"
    found = (violation(*pair) for pair in zip(hints, value, strict=True))
    return next((f"{text} for each element" for text in found if text), None)


def check_value(hint: Any, value: Any, where: str) -> None:
    """Raises `UserError` if a value violates a declared type; `where` is its name in messages."""
    if text := violation(hint, value):
        raise UserError(f"{where}: got {format_value(value)}, {text}")


def check_fields(hints: Mapping[str, Any], values: Mapping[str, Any], where: str) -> None:
    """Checks the values of a section against the declared types of its fields.

    Raises:
      UserError: an unknown field, or an invalid value.
    """
    for name, value in values.items():
        if name not in hints:
            raise UserError(f"no field {name!r} in {where}: {nearest(name, hints)}")
        check_value(hints[name], value, f"{where}.{name}")


def check_relations(relations: Sequence[Relation], values: Mapping[str, Any], where: str) -> None:
    """Checks relations between values; those with a field that is absent or None are skipped.

    Raises:
      UserError: a relation does not hold.
    """
    for relation in relations:
        found = {name: values.get(name) for name in relation.fields}
        if None in found.values() or relation.holds(*found.values()):
            continue
        got = ", ".join(f"{name}={format_value(value)}" for name, value in found.items())
        remedy = relation.remedy
        todo = remedy if isinstance(remedy, str) else remedy(*found.values())
        raise UserError(f"{where}: got {got}, expected {relation.expected}; {todo}")


def relations_of(schema: type) -> tuple[Relation, ...]:
    """The relations that a module or section declares."""
    return getattr(schema, "relations", ())


def with_defaults(schema: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, and the class's defaults of the fields without one."""
    defaults = {name: getattr(schema, name, None) for name in fields_of(schema)}
    return {name: value for name, value in defaults.items() if value is not None} | dict(values)


def check_section(schema: type, values: Mapping[str, Any], where: str) -> None:
    """Checks the values of a module or section, and its relations.

    Raises:
      UserError: naming the first invalid field.
    """
    check_fields(fields_of(schema), values, where)
    check_relations(relations_of(schema), with_defaults(schema, values), where)


def check_module(module: Any) -> None:
    """Checks the fields of a Linen module, which may have been built without a config.

    Raises:
      UserError: an invalid value, or a relation that does not hold.
    """
    kind = type(module)
    values = {name: getattr(module, name) for name in fields_of(kind)}
    check_section(kind, values, kind.__module__.rpartition(".")[-1])


def constraint_action(hint: Any) -> type[argparse.Action]:
    """The argparse action of a numeric flag; an invalid value is a `UserError`, without the usage.

    Args:
      hint: A declared type, such as `PositiveInt`.
    """
    kind = typing.get_args(hint)[0]

    class ConstraintAction(argparse.Action):
        def __call__(self, parser, namespace, values, option_string=None):
            try:
                value = kind(values)
            except ValueError:
                value = values
            check_value(hint, value, self.option_strings[-1])
            setattr(namespace, self.dest, value)

    return ConstraintAction


def format_value(value: Any) -> str:
    """Formats a value for a message, truncated."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
