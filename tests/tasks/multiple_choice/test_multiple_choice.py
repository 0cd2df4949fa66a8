"""Multiple-choice questions of any data set: subsampling and checks."""

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.multiple_choice.files import Row, collect


def row(number, **changes):
    given = {"where": f"FILE line {number}", "context": f"c{number}", "question": f"q{number}"}
    given |= {"options": tuple(f"{letter}{number}" for letter in "abcd"), "answer": number % 4}
    return Row(**given | {"identity": str(number)} | changes)


def test_a_subsample_has_whole_questions_in_order():
    choices = collect([row(number, level="high") for number in range(20)])
    assert (len(choices), choices.num_choices) == (20, 4)
    some = choices.sample(7, seed=3)
    numbers = [int(identity) for identity in some.ids]
    assert len(set(numbers)) == 7
    assert numbers == sorted(numbers)
    expected = collect([row(number, level="high") for number in numbers])
    assert (some.contexts, some.questions, some.options) == (
        expected.contexts,
        expected.questions,
        expected.options,
    )
    assert some.levels == expected.levels
    assert some.answers.tolist() == expected.answers.tolist()
    assert some.answers.dtype == np.int32
    assert choices.sample(7, seed=3).ids == some.ids
    assert choices.sample(7, seed=4).ids != some.ids
    assert choices.sample(99, seed=3).ids == choices.ids


def test_a_split_without_answers():
    choices = collect([row(number, answer=None) for number in range(3)])
    assert choices.answers is None
    assert choices.sample(2, seed=0).answers is None


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (0, None, r"FILE line 2: got no answer, unlike FILE line 1; expected answers to all"),
        (None, 0, r"FILE line 2: got an answer, unlike FILE line 1; expected answers to all"),
    ],
)
def test_all_questions_have_answers_or_none(first, second, message):
    with pytest.raises(UserError, match=message):
        collect([row(1, answer=first), row(2, answer=second)])


def test_two_questions_of_one_name_are_refused():
    with pytest.raises(UserError, match=r"FILE line 2: question 'x' occurs at FILE line 1 too;"):
        collect([row(1, identity="x"), row(2, identity="x")])
