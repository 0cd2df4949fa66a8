"""Spans of characters as tags of words."""

from bertjax.corpus.format import Table
from bertjax.tasks.tags import rows


def test_spans_are_tags_of_words_and_back():
    """A span that ends inside a word covers the word; punctuation and Han are words."""
    spans = [{"start": 0, "end": 6, "label": "PER"}, {"start": 12, "end": 14, "label": "LOC"}]
    columns = {"text": ["Anna-Lee in 北京, ok"], "spans": [spans]}
    (row,) = rows.read_spans(Table("t.jsonl", columns, ["t.jsonl:1"]), "text", "spans")
    assert row.sentence.words == ("Anna", "-", "Lee", "in", "北", "京", ",", "ok")
    assert row.sentence.tags == ("B-PER", "I-PER", "I-PER", "O", "B-LOC", "I-LOC", "O", "O")
    shown = rows.to_spans(row.text, row.ranges, row.sentence.tags)
    assert shown[0] == {"start": 0, "end": 8, "label": "PER", "text": "Anna-Lee"}
    assert shown[1] == {**spans[1], "text": "北京"}
