"""Files of pairs: tab-separated or JSON lines, and lines without a pair."""

import json

import pytest

from bertjax.corpus import documents
from bertjax.errors import UserError

PAIRS = [("one two. three four.", "four"), ("two", "one. Two. three")]


@pytest.mark.parametrize("name", ["pairs.jsonl", "./pairs.json", "data.v1/pairs.JSONL", "pairs"])
def test_json_lines_give_the_same_pairs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [dict(zip(("source", "target"), pair, strict=True)) for pair in PAIRS]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("\n ".join(map(json.dumps, rows)))
    assert list(documents.read_pairs(name)) == PAIRS


@pytest.mark.parametrize("name", ["a.json.d/pairs.tsv", "pairs.ndjson.tsv", "pairs.txt"])
def test_lines_with_tabs_are_pairs_whatever_their_folder_is_named(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    braces = [] if name == "pairs.txt" else [("{a}", "b")]
    lines = ["\t".join(pair) for pair in PAIRS + braces]
    (tmp_path / name).write_text("\n".join(lines))
    assert list(documents.read_pairs(str(tmp_path / name))) == PAIRS + braces


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.tsv", "only a source", r"a\.tsv:2: got 1 field\(s\), expected 2"),
        ("a.tsv", "a\tb\tc", r"a\.tsv:2: got 3 field\(s\), expected 2"),
        ("a.tsv", "a\t ", r"a\.tsv:2: got an empty source or target"),
        ("a.tsv", "a" * (1 << 20) + "\tb", r"a\.tsv:2: got a pair of 1,048,577 characters"),
        ("a.jsonl", '{"source": "a"}', r'a\.jsonl:2: got .*, expected {"source": "\.\.\."'),
        ("a.jsonl", '{"source": "a", "target": 3}', r"a\.jsonl:2: got .*, expected"),
    ],
)
def test_a_line_without_a_pair_is_refused_with_its_number(name, line, message, tmp_path):
    path = tmp_path / name
    good = "a\tb" if name.endswith("tsv") else '{"source": "a", "target": "b"}'
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(UserError, match=message):
        list(documents.read_pairs(str(path)))
