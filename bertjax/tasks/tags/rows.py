"""Rows of a table as tagged sentences: words with a tag each, or a text with labelled spans.

A text is split at white space, and every punctuation mark and every Chinese or Japanese character
is a word, as in BERT's `BasicTokenizer`. A span that ends inside a word covers the whole word.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.metrics.entities import OUTSIDE, extract_entities
from bertjax.tasks.ner import conll
from bertjax.tasks.ner.conll import Sentence

_LETTERS_THAT_ARE_WORDS = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_SHOWN = 40

Range = tuple[int, int]
"""(first character, character after the last) of a word in its text."""


@dataclasses.dataclass(frozen=True)
class Row:
    """An example.

    Attributes:
      sentence: Its words and tags.
      text: The text; "" if the table has words.
      ranges: Characters of each word in the text.
    """

    sentence: Sentence
    text: str = ""
    ranges: tuple[Range, ...] = ()


def has_texts(table: Table, text: str, label: str) -> bool:
    """Whether a table has texts with spans: its labels are lists of objects, or lists of nothing.

    Args:
      table: The training examples.
      text: Column of the words or texts.
      label: Column of the tags or spans.
    """
    if any(isinstance(cell, list) for cell in table.parse_column(text)):
        return False
    return all(
        isinstance(cell, list) and all(isinstance(each, dict) for each in cell)
        for cell in table.parse_column(label)
    )


def read_tagged(table: Table, column: str, label: str) -> list[Row]:
    """Reads words and tags: lists, or texts separated by spaces.

    Args:
      table: The examples.
      column: Column of the words.
      label: Column of the tags; "" for none.

    Raises:
      UserError: a row has no word, or another number of tags.
    """
    rows, word_cells = [], table.parse_column(column, strict=True)
    tag_cells = table.parse_column(label, strict=True) if label else []
    for number, where in enumerate(table.locations):
        words = _items(word_cells[number])
        if not words or not all(words):
            raise UserError(
                f"{where}: column {column!r} is empty or has an empty word, expected words; "
                "remove the row"
            )
        tags = _items(tag_cells[number]) if label else (OUTSIDE,) * len(words)
        if len(tags) != len(words):
            raise UserError(
                f"{where}: got {len(words)} words in {column!r} and {len(tags)} tags in {label!r}, "
                "expected the same number; fix the row"
            )
        if not all(tags):
            raise UserError(
                f"{where}: column {label!r} has an empty tag, expected a tag for each word; use "
                f"{OUTSIDE!r} for none"
            )
        rows.append(Row(_sentence(words, tags, where, number)))
    return rows


def _items(cell: Any) -> tuple[str, ...]:
    if isinstance(cell, list):
        return tuple("" if each is None else str(each).strip() for each in cell)
    return () if cell is None else tuple(str(cell).split())


def _sentence(words: Sequence[str], tags: Sequence[str], where: str, number: int) -> Sentence:
    size = len(words)
    return Sentence(tuple(words), tuple(tags), ((),) * size, (where,) * size, number)


def read_spans(table: Table, column: str, label: str) -> list[Row]:
    """Reads texts and lists of spans, `{"start": 0, "end": 4, "label": "PER"}`, in characters.

    Args:
      table: The examples.
      column: Column of the texts.
      label: Column of the spans; "" for none.

    Raises:
      UserError: a text is empty, or a span is malformed, outside of the text or overlaps another.
    """
    rows, cells = [], table.parse_column(label) if label else []
    for number, where in enumerate(table.locations):
        text = table.columns[column][number]
        ranges = split_text(text) if isinstance(text, str) else []
        if not ranges:
            raise UserError(f"{where}: column {column!r} is empty, expected a text; remove the row")
        spans = cells[number] if label else []
        if not isinstance(spans, list):
            raise UserError(
                f"{where}: column {label!r}: got {str(spans)[:_SHOWN]!r}, expected a list of spans "
                'such as [{"start": 0, "end": 4, "label": "PER"}]; fix the row'
            )
        tags = _span_tags(where, text, ranges, [_span(where, text, span) for span in spans])
        words = [text[begin:end] for begin, end in ranges]
        rows.append(Row(_sentence(words, tags, where, number), text, tuple(ranges)))
    return rows


def split_text(text: str) -> list[Range]:
    """Returns the characters of each word of a text."""
    ranges, begin = [], None
    for place, character in enumerate([*text, " "]):
        kind = unicodedata.category(character)[0]
        stands_alone = kind in "PS" or _LETTERS_THAT_ARE_WORDS.match(character)
        if begin is not None and (character.isspace() or stands_alone):
            ranges.append((begin, place))
            begin = None
        if stands_alone:
            ranges.append((place, place + 1))
        elif begin is None and not character.isspace():
            begin = place
    return ranges


def _span(where: str, text: str, span: Any) -> tuple[int, int, str]:
    if not isinstance(span, dict) or not {"start", "end", "label"} <= span.keys():
        raise UserError(
            f"{where}: got the span {str(span)[:_SHOWN]}, expected an object with start, end and "
            "label; fix the row"
        )
    start, end, label = span["start"], span["end"], span["label"]
    is_number = type(start) is int and type(end) is int
    if not is_number or not 0 <= start < end <= len(text) or not text[start:end].strip():
        raise UserError(
            f"{where}: got the span {start} to {end} of a text with {len(text)} characters, "
            "expected 0 <= start < end <= length around a word; fix the row"
        )
    if not isinstance(label, str) or not label or re.search(r"\s", label):
        raise UserError(
            f"{where}: got the span {start} to {end} with the label {label!r}, expected a name "
            "without spaces; fix the row"
        )
    return start, end, label


def _span_tags(
    where: str, text: str, ranges: Sequence[Range], spans: Sequence[tuple[int, int, str]]
) -> list[str]:
    """Returns the IOB2 tags of the words that the spans cover, also in part."""
    tags, owner = [OUTSIDE] * len(ranges), {}
    for start, end, label in sorted(spans):
        covered = [n for n, (begin, stop) in enumerate(ranges) if begin < end and start < stop]
        for place, number in enumerate(covered):
            if number in owner:
                raise UserError(
                    f"{where}: the spans {owner[number]} and ({start}, {end}) share the word "
                    f"{text[slice(*ranges[number])]!r}, expected spans that do not overlap; "
                    "remove one"
                )
            owner[number] = (start, end)
            tags[number] = f"{'I' if place else 'B'}-{label}"
    return tags


def to_spans(text: str, ranges: Sequence[Range], tags: Sequence[str]) -> list[dict[str, Any]]:
    """Converts the tags of a text's words to spans."""
    found = []
    for label, first, last in extract_entities(tags):
        start, end = ranges[first][0], ranges[last - 1][1]
        found.append({"start": start, "end": end, "label": label, "text": text[start:end]})
    return found


def are_entities(rows: Iterable[Row]) -> bool:
    """Whether all tags are O, or B, I, E or S with a type, and some tag is not O."""
    tags = {tag for row in rows for tag in row.sentence.tags}
    return tags != {OUTSIDE} and all(map(conll.is_tag, tags))
