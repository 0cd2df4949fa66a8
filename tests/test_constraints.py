"""Constraints: accepted values, messages, and checked flags."""

import argparse
import ast
import dataclasses
import math
import pathlib
from typing import Annotated

import pytest

from bertjax import constraints
from bertjax.constraints import (
    AnyText,
    NonNegativeInt,
    NotEmpty,
    Number,
    OneOf,
    OpenShare,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    Relation,
    Share,
    ShareBelowOne,
    constraint_action,
    violation,
)
from bertjax.errors import UserError

COMMANDS = pathlib.Path(constraints.__file__).parent / "commands"


@pytest.mark.parametrize(
    ("hint", "fits", "does_not"),
    [
        (Share, (0, 0.0, 0.5, 1, 1.0), (-0.1, 1.1)),
        (PositiveShare, (1e-9, 1.0), (0.0, 1.5)),
        (OpenShare, (0.5,), (0.0, 1.0)),
        (ShareBelowOne, (0.0, 0.999), (1.0, -1)),
        (PositiveFloat, (1e-30, 3), (0, -1.0)),
        (PositiveInt, (1, 2**31 - 1), (0, -1, 1.0, 2**31)),
        (NonNegativeInt, (0, 7), (-1, 0.5)),
        (bool, (True, False), (1, 0, "true", None)),
        (Annotated[str, OneOf(("relu", "gelu"))], ("relu",), ("rel", "", 1)),
        (AnyText, ("", "a"), (1, b"a")),
        (Share | None, (None, 0.5), (2,)),
        (tuple[PositiveInt, ...], ((), (1, 2), [3]), (1, (1, 0), ("1",))),
        (tuple[PositiveInt, Share], ((1, 0.5),), ((1,), (1, 2), (1, 0.5, 1))),
        (Annotated[tuple[PositiveInt, ...], NotEmpty()], ((1,),), ((), (0,))),
    ],
)
def test_accepted_and_refused_values(hint, fits, does_not):
    assert constraints.is_declared(hint)
    assert [value for value in fits if violation(hint, value)] == []
    assert [value for value in does_not if not violation(hint, value)] == []


@pytest.mark.parametrize("hint", [Share, PositiveFloat, PositiveInt, Annotated[float, Number()]])
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 10**400, True, False, "1", None, (1,)]
)
def test_nonfinite_numbers_are_refused(hint, value):
    assert violation(hint, value)


@pytest.mark.parametrize(
    "hint", [int, float, str, tuple[int, ...], int | None, Annotated[int, "x"]]
)
def test_a_bare_type_has_no_constraint(hint):
    assert not constraints.is_declared(hint)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (PositiveShare, 1.5, "x: got 1.5, expected a share in (0, 1]"),
        (PositiveInt, 0, "x: got 0, expected an integer >= 1"),
        (PositiveInt, 2**40, "x: got 1099511627776, expected an integer in [1, 2147483647]"),
        (Share | None, "a", "x: got 'a', expected a share in [0, 1] or none"),
        (
            Annotated[int, constraints.integer(0, meaning="0 takes all")],
            -1,
            "x: got -1, expected an integer >= 0 (0 takes all)",
        ),
        (
            Annotated[str, OneOf(("relu", "gelu"))],
            "gelo",
            "x: got 'gelo', expected one of 'relu', 'gelu'; did you mean 'gelu'?",
        ),
    ],
)
def test_the_message_has_the_value_and_the_constraint(hint, value, message):
    with pytest.raises(UserError) as caught:
        constraints.check_value(hint, value, "x")
    assert str(caught.value) == message


@dataclasses.dataclass
class Halves:
    left: Share = 0.5
    right: Share = 0.5

    relations = (
        Relation(("left", "right"), lambda a, b: a + b <= 1, "left + right <= 1", "lower one"),
    )


def test_a_relation_includes_defaults_of_missing_fields():
    constraints.check_section(Halves, {"left": 0.25}, "config.x")
    with pytest.raises(UserError) as caught:
        constraints.check_section(Halves, {"left": 0.75}, "config.x")
    assert str(caught.value) == (
        "config.x: got left=0.75, right=0.5, expected left + right <= 1; lower one"
    )
    constraints.check_relations(Halves.relations, {"left": None, "right": 1.0}, "config.x")


def test_an_unknown_field_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"no field 'lefft' in config.x: did you mean 'left'\?"):
        constraints.check_fields(constraints.fields_of(Halves), {"lefft": 1}, "config.x")


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--top_p", action=constraint_action(PositiveShare), default=1.0)
    parser.add_argument("--seeds", action=constraint_action(PositiveInt))
    return parser.parse_args(words)


def test_a_checked_flag_is_parsed_as_its_type():
    assert vars(parse()) == {"top_p": 1.0, "seeds": None}
    assert vars(parse("--top_p", "0.5", "--seeds=3")) == {"top_p": 0.5, "seeds": 3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--top_p", "1.5"), "--top_p: got 1.5, expected a share in (0, 1]"),
        (("-p", "nan"), "--top_p: got nan, expected a share in (0, 1]"),
        (("--seeds", "0"), "--seeds: got 0, expected an integer >= 1"),
        (("--seeds", "two"), "--seeds: got 'two', expected an integer >= 1"),
        (("--seeds", "1.5"), "--seeds: got '1.5', expected an integer >= 1"),
    ],
)
def test_a_checked_flag_is_refused_in_one_line(words, message):
    with pytest.raises(UserError) as caught:
        parse(*words)
    assert str(caught.value) == message


@pytest.mark.parametrize("path", sorted(COMMANDS.glob("*.py")), ids=lambda path: path.name)
def test_numeric_flags_declare_their_constraint(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "type":
            assert ast.unparse(node.value) not in ("int", "float"), f"line {node.value.lineno}"
