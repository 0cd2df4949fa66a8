"""Reading RACE's released layout."""

import json

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.multiple_choice import files as multiple_choice_files


def article(name, count=2, **changes):
    return {
        "id": name,
        "article": f"Article {name}.\nIt has two lines.",
        "questions": [f"Question {n} of {name} is _ ." for n in range(count)],
        "options": [[f"{letter} {n}" for letter in "abcd"] for n in range(count)],
        "answers": ["ABCD"[(n + 1) % 4] for n in range(count)],
    } | changes


@pytest.fixture
def put(tmp_path):
    def put(place, content):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return put


def test_articles_questions_and_levels(put):
    put("train/high/10.txt", article("high10.txt", 1))
    put("train/high/9.txt", article("high9.txt", 2))
    put("train/middle/3.txt", article("middle3.txt", 1))
    put("train/middle/.hidden", "no article")
    splits = multiple_choice_files.read_race(put("dev/high/1.txt", article("high1.txt")))
    assert list(splits) == ["train", "dev"]
    train = splits["train"]
    assert train.ids == ["middle3.txt-0", "high9.txt-0", "high9.txt-1", "high10.txt-0"]
    assert train.levels == ["middle", "high", "high", "high"]
    assert train.contexts[1] == train.contexts[2] == "Article high9.txt.\nIt has two lines."
    assert train.questions[2] == "Question 1 of high9.txt is _ ."
    assert train.options[2] == ("a 1", "b 1", "c 1", "d 1")
    assert train.answers.tolist() == [1, 1, 2, 1]
    assert train.answers.dtype == np.int32
    assert splits["dev"].ids == ["high1.txt-0", "high1.txt-1"]


def test_one_level_alone_and_no_answers(put):
    given = article("middle1.txt")
    del given["answers"]
    found = multiple_choice_files.read_race_split(put("test/middle/1.txt", given) / "test")
    assert found.answers is None
    assert found.levels == ["middle", "middle"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": [["a"] * 4, ["a"] * 5]}, r"1\.txt question 2: got 5 options, expected 4; fix"),
        (
            {"options": [["a"] * 4, "abcd"]},
            r"1\.txt question 2: options: got 'abcd', expected a list",
        ),
        (
            {"options": [[1, 2, 3, 4], ["a"] * 4]},
            r"question 1: options: got '\[1, 2, 3, 4\]', expected",
        ),
        (
            {"answers": ["A", "E"]},
            r"1\.txt question 2: answer: got 'E', expected A, B, C or D; fix",
        ),
        ({"answers": ["A", ""]}, r"1\.txt question 2: answer: got '', expected A, B, C or"),
        ({"answers": ["AB", "A"]}, r"1\.txt question 1: answer: got 'AB', expected A, B, C or"),
        ({"answers": ["A", 1]}, r"1\.txt question 2: answer: got 1, expected A, B, C or"),
        (
            {"answers": ["A"]},
            r"1\.txt: got 2 questions, 2 lists of options and 1 answers, expected the",
        ),
        (
            {"options": []},
            r"1\.txt: got 2 questions, 0 lists of options and 2 answers, expected the",
        ),
        ({"article": None}, r'1\.txt: expected an object with "article", "questions", "options",'),
        ({"answers": "AB"}, r'1\.txt: expected an object with "article", "questions", "options",'),
        (
            {"questions": [1, 2]},
            r'1\.txt: expected an object with "article", "questions", "options",',
        ),
    ],
)
def test_invalid_articles_are_refused(put, changes, message):
    with pytest.raises(UserError, match=message) as error:
        multiple_choice_files.read_race(put("train/high/1.txt", article("high1.txt", **changes)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\\t", "\t"),
    ],
    ids=["byte order mark", "carriage returns", "bare tabs"],
)
def test_other_spellings_of_a_file(put, change):
    """Quotes and tabs within a text are literal."""
    content = article("1.txt", 1, article='It said "no"\tand went.')
    read = multiple_choice_files.read_race(
        put("dev/high/1.txt", change(json.dumps(content, indent=1)))
    )["dev"]
    assert read.contexts == ['It said "no"\tand went.']
    assert read.options == [("a 0", "b 0", "c 0", "d 0")]


def test_text_that_cannot_be_encoded_is_named(put):
    content = article("1.txt", 2, questions=["one _", "two \ud800 _"])
    with pytest.raises(UserError, match=r"high.1.txt question 2: got half of a surrogate pair"):
        multiple_choice_files.read_race(put("dev/high/1.txt", content))


def test_other_files_are_ignored_or_refused(put):
    put("train/high/1.txt", "{")
    with pytest.raises(
        UserError, match=r"1\.txt: invalid JSON \(.*\); copy the released file again"
    ):
        multiple_choice_files.read_race(put("train/high/1.txt", "{"))
    with pytest.raises(UserError, match=r"1\.txt: expected an object with"):
        multiple_choice_files.read_race(put("train/high/1.txt", "[]"))


def test_empty_folders(tmp_path):
    with pytest.raises(
        UserError, match=r"no folder train, dev, test in .*: expected the folder of the RACE"
    ):
        multiple_choice_files.read_race(tmp_path)
    (tmp_path / "dev" / "high").mkdir(parents=True)
    with pytest.raises(
        UserError,
        match=r"no article in .*dev: expected middle/\*\.txt or high/\*\.txt, one file per article",
    ):
        multiple_choice_files.read_race(tmp_path)


def test_duplicate_article_ids_are_refused(put):
    put("dev/middle/1.txt", article("1.txt", 1))
    with pytest.raises(
        UserError, match=r"1\.txt question 1: question '1\.txt-0' occurs at .*1\.txt"
    ):
        multiple_choice_files.read_race(put("dev/high/1.txt", article("1.txt", 1)))
