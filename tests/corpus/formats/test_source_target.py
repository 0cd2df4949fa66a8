"""Files of pairs: tab-separated or JSON lines, and lines without a pair."""

import json

import pytest

from bertjax.corpus import documents
from bertjax.errors import UserError

PAIRS = [("one two. three four.", "four"), ("two", "one. Two. three")]


def test_json_lines_give_the_same_pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [dict(zip(("source", "target"), pair, strict=True)) for pair in PAIRS]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert list(documents.read_pairs(str(path))) == PAIRS


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.tsv", "only a source", r"a\.tsv:2: got 1 field\(s\), expected 2"),
        ("a.tsv", "a\tb\tc", r"a\.tsv:2: got 3 field\(s\), expected 2"),
        ("a.tsv", "a\t ", r"a\.tsv:2: got an empty source or target"),
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
