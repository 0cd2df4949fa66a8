"""Input of `bertjax predict`: rows of tables with a header, and lines of other files."""

import json

import pytest

from bertjax.errors import UserError
from bertjax.inference.predict import read_lines, rows_below_header
from bertjax.tasks import dataset


@pytest.fixture
def rows_of(tmp_path):
    """Writes a file and reads it: (number of the line of the first example, its examples)."""

    def read(name, content):
        path = tmp_path / name
        path.write_text(content)
        found = list(read_lines(str(path)))
        return found[0][0].removeprefix(f"{path}:"), [text for _, text in found]

    return read


def test_rows_are_objects_of_their_columns(rows_of):
    last_line, rows = rows_of("a.csv", 'text,words\n"[1], said\nhe","[""a"", ""b""]"\n[2],[]\n')
    assert last_line == "3"  # of the first row
    assert list(map(json.loads, rows)) == [
        {"text": "[1], said\nhe", "words": ["a", "b"]},
        {"text": "[2]", "words": []},
    ]


def test_rows_of_parquet_keep_their_types(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["x"], "words": [["[3]", "d"]]}), path)
    ((_, row),) = read_lines(str(path))
    assert json.loads(row) == {"text": "x", "words": ["[3]", "d"]}


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.txt"])
def test_lines_of_other_files_are_examples(rows_of, name):
    assert rows_of(name, '\n{"a": "b"}\n\nc\td\n') == ("2", ['{"a": "b"}', "c\td"])


def test_other_files_are_refused(rows_of):
    with pytest.raises(UserError, match="is a PDF"):
        rows_of("a.txt", "%PDF-1.7\n")
    with pytest.raises(UserError, match=r"one JSON value over many lines, .*converted\.jsonl$"):
        rows_of("a.json", '[{"text": "a"}]')


def test_other_keys_than_those_of_the_model_are_named():
    with pytest.raises(UserError, match=r'a:2: got the keys x, y, expected .* with "text" \(a st'):
        dataset.parse_fields(("a:2", '{"x": "a", "y": "b"}'), ["text"])


NAMES = ("a", "b")
ROWS = [("x:2", "[1] one\t[]\ttwo"), ("x:3", "[2]\t[3]\t")]


def test_lines_below_the_header_of_the_training_table_are_rows():
    notes = []
    lines = [("x:1", "b\tkinds\t a "), *ROWS]
    found = list(rows_below_header(iter(lines), NAMES, notes.append))
    assert [where for where, _ in found] == ["x:2", "x:3"]
    assert [json.loads(row) for _, row in found] == [
        {"b": "[1] one", "kinds": [], "a": "two"},
        {"b": "[2]", "kinds": [3], "a": ""},
    ]
    assert notes == ["x:1: read as a header, with the columns b, kinds, a"]
    with pytest.raises(UserError, match=r"x:2: got 1 field\(s\), expected 3 as in the header"):
        list(rows_below_header(iter([lines[0], ("x:2", "one")]), NAMES, notes.append))


@pytest.mark.parametrize("first", ["a\tc", "a\tb\ta", "a, b", "one\ttwo", '{"a": 1, "b": 2}'])
def test_lines_without_a_header_are_unchanged(first):
    for lines in ([("x:1", first), *ROWS], [("x:1", "a\tb")], []):
        assert list(rows_below_header(iter(lines), NAMES, pytest.fail)) == lines


@pytest.mark.parametrize("header", ["id,a,b", '"b";"a"'])
def test_lines_below_the_header_of_a_csv_table_are_refused(header):
    lines = [("standard input:1", header), *ROWS]
    with pytest.raises(UserError, match=r"input:1: got .*, the header of a CSV.* --input FILE.csv"):
        rows_below_header(iter(lines), NAMES, pytest.fail)
