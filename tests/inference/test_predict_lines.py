"""Input of `bertjax predict`: rows of tables with a header, and lines of other files."""

import json

import pytest

from bertjax.errors import UserError
from bertjax.inference.predict import read_lines
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
