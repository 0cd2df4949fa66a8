"""Reading SWAG's released layout."""

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.multiple_choice import files as multiple_choice_files

HEADER = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
)
ROWS = [
    '0,anetv_1,34,"A man sits, on a roof. He",A man sits on a roof.,He,gold,'
    "is using wrap.,is ripping tiles.,holds a cube.,pulls up roofing.,3",
    '1,anetv_2,35,x,"She said ""no"", twice.",She,gen,a.,"b, c.",d.,e.,0',
]


@pytest.fixture
def put(tmp_path):
    def put(*lines, name="val.csv", end="\n"):
        (tmp_path / name).write_bytes("".join(f"{line}{end}" for line in lines).encode())
        return tmp_path / name

    return put


def test_rows_are_questions(put):
    folder = put(HEADER, *ROWS).parent
    put(HEADER, *ROWS, name="train.csv")
    assert list(multiple_choice_files.read_swag(folder)) == ["train", "dev"]
    dev = multiple_choice_files.read_swag(folder)["dev"]
    assert dev.contexts == ["A man sits on a roof.", 'She said "no", twice.']
    assert dev.questions == ["He", "She"]
    assert dev.options[0][3] == "pulls up roofing."
    assert dev.options[1] == ("a.", "b, c.", "d.", "e.")
    assert dev.answers.tolist() == [3, 0]
    assert dev.answers.dtype == np.int32
    assert dev.ids == ["0", "1"]
    assert dev.levels == ["", ""]


def test_a_test_split_has_no_labels(put):
    without = [line.rpartition(",")[0] for line in (HEADER, *ROWS)]
    found = multiple_choice_files.read_swag(put(*without, name="test.csv").parent)
    assert list(found) == ["test"]
    assert found["test"].answers is None
    with pytest.raises(
        UserError, match=r"val.csv line 1: no column 'label' among , video-id, fold"
    ):
        multiple_choice_files.read_swag_file(put(*without))


@pytest.mark.parametrize(
    "options",
    [{"end": "\r\n"}, {"end": "\n\n"}, {"first": "\ufeff"}, {"more": ",extra"}],
)
def test_other_spellings_of_a_file(put, options):
    first, more, end = options.get("first", ""), options.get("more", ""), options.get("end", "\n")
    lines = [first + HEADER + more, *(line + more for line in ROWS)]
    assert (
        multiple_choice_files.read_swag_file(put(*lines, end=end)).options
        == multiple_choice_files.read_swag_file(put(HEADER, *ROWS)).options
    )


def test_line_numbers_with_line_ends_in_quotes(put):
    broken = '2,v,36,x,"two\nlines",She,gen,a.,b.,c.,d.,0'
    found = multiple_choice_files.read_swag_file(put(HEADER, broken, *ROWS))
    assert found.contexts[0] == "two\nlines"
    with pytest.raises(UserError, match=r"val\.csv line 4: label: got '4', expected 0, 1, 2 or"):
        multiple_choice_files.read_swag_file(put(HEADER, broken, ROWS[0][:-1] + "4"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"val.csv line 1: no column 'sent1' among none; expected the header line"),
        ([HEADER], r"val\.csv has no questions: expected one per line after the header line"),
        ([ROWS[0]], r"val.csv line 1: no column 'sent1' among 0, anetv_1, 34"),
        ([HEADER.replace("ending2", "x"), *ROWS], r"val.csv line 1: no column 'ending2' among"),
        (
            [HEADER, ROWS[0], ROWS[1] + ",9"],
            r"val\.csv line 3: got 13 fields, expected 12 separated by",
        ),
        (
            [HEADER, "0,1"],
            r"val\.csv line 2: got 2 fields, expected 12 separated by commas; fix the",
        ),
        ([HEADER, ROWS[0][:-1]], r"val\.csv line 2: label: got '', expected 0, 1, 2 or 3; fix the"),
        (
            [HEADER, ROWS[0], '1,"v'],
            r"val\.csv line 3: .*; expected fields separated by commas",
        ),
    ],
)
def test_errors_name_the_line(put, lines, message):
    with pytest.raises(UserError, match=message) as error:
        multiple_choice_files.read_swag_file(put(*lines))
    assert "\n" not in str(error.value)


def test_an_empty_folder(tmp_path):
    with pytest.raises(
        UserError,
        match=r"no train\.csv, val\.csv, test\.csv in .*: expected the folder of the SWAG",
    ):
        multiple_choice_files.read_swag(tmp_path)
