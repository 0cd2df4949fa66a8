"""Convert records of the SuperGLUE files, one JSON object per line, to rows.

There is a function for each layout. It takes the location of a record, the record and the
spelling of the classes, and yields a row for every sequence that the model classifies: one per
example, one per answer (MultiRC) or one per candidate entity (ReCoRD). COPA has one per question.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from bertjax.data.random import sample
from bertjax.errors import UserError
from bertjax.io.files import get_field

Key = tuple[int, ...]
"""`idx` of an example; for MultiRC those of passage, question and answer."""

Span = tuple[int, int, int]
"""(index of the text, first character, character after the last)."""

PLACEHOLDER = "@placeholder"
"""The position of the missing entity in a query of ReCoRD."""

CONJUNCTIONS = {"cause": "because", "effect": "so"}
"""The text between the premise of COPA and an alternative, by the kind of question."""

_LAYOUT = "a record of the released SuperGLUE file"


@dataclasses.dataclass(frozen=True)
class Row:
    """One sequence to classify.

    Attributes:
      where: Location of the record, for error messages.
      key: The example in prediction files.
      texts: The one or two texts; for COPA the premise, the conjunction and both alternatives.
      label: Index of the class; None in an unlabelled file.
      candidate: The entity of ReCoRD that this row puts into the query.
      answers: Accepted answers of ReCoRD.
      spans: The two marked spans of WiC and WSC.
    """

    where: str
    key: Key
    texts: tuple[str, ...]
    label: int | None
    candidate: str = ""
    answers: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()


RowReader = Callable[[str, Any, Sequence[str]], Iterator[Row]]


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of a split, in file order."""

    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self, size: int, seed: int) -> "Examples":
        """Returns `size` random rows, sampled without replacement, in file order."""
        return Examples([self.rows[number] for number in sample(len(self), size, seed)])

    @property
    def texts(self) -> tuple[list[str], ...]:
        """The first, and the second text of each row."""
        return tuple(map(list, zip(*(row.texts for row in self.rows), strict=True)))

    @property
    def labels(self) -> Int32[np.ndarray, " n"] | None:
        """The class of each row; None for an unlabelled split."""
        if self.rows[0].label is None:
            return None
        return np.array([row.label for row in self.rows], np.int32)


def pair_reader(first: str, second: str) -> RowReader:
    """Returns the reader of records with two texts and a label: BoolQ, CB, RTE, diagnostics."""

    def read(where: str, record: Any, labels: Sequence[str]) -> Iterator[Row]:
        texts = tuple(_get(where, record, name, str) for name in (first, second))
        yield Row(where, (_idx(where, record),), texts, _label(where, record, labels))

    return read


def read_copa(where: str, record: Any, labels: Sequence[str]) -> Iterator[Row]:
    """Yields the question of a record of COPA; its label is the index of the alternative."""
    premise, kind, *choices = (
        _get(where, record, name, str) for name in ("premise", "question", "choice1", "choice2")
    )
    if kind not in CONJUNCTIONS:
        raise UserError(f"{where}: question: got {kind!r}, expected cause or effect; fix the file")
    texts = (premise, CONJUNCTIONS[kind], *choices)
    yield Row(where, (_idx(where, record),), texts, _label(where, record, labels))


def read_multirc(where: str, record: Any, labels: Sequence[str]) -> Iterator[Row]:
    """Yields every answer of a paragraph of MultiRC, after its question."""
    passage = _get(where, record, "passage", dict)
    text = _get(where, passage, "text", str)
    for question in _get(where, passage, "questions", list):
        question_text = _get(where, question, "question", str)
        for answer in _get(where, question, "answers", list):
            key = tuple(_idx(where, node) for node in (record, question, answer))
            second = f"{question_text} {_get(where, answer, 'text', str)}"
            yield Row(where, key, (text, second), _label(where, answer, labels))


def read_record(where: str, record: Any, labels: Sequence[str]) -> Iterator[Row]:
    """Yields every query of a passage of ReCoRD with each different entity of the passage."""
    passage = _get(where, record, "passage", dict)
    text = _get(where, passage, "text", str)
    spans = [_entity(where, node, text) for node in _get(where, passage, "entities", list)]
    candidates = dict.fromkeys(text[begin:end] for begin, end in spans)
    if not candidates:
        raise UserError(f"{where}: got no entities, expected one or more; fix the file")
    for node in _get(where, record, "qas", list):
        query, key = _get(where, node, "query", str), (_idx(where, node),)
        if PLACEHOLDER not in query:
            raise UserError(
                f"{where}: query {key[0]}: got {query[:60]!r}, expected a text with {PLACEHOLDER}; "
                "fix the file"
            )
        answers: tuple[str, ...] | None = None
        if "answers" in node:
            accepted = _get(where, node, "answers", list)
            answers = tuple(_get(where, answer, "text", str) for answer in accepted)
            if not answers:
                raise UserError(f"{where}: query {key[0]}: got no answer, expected one or more")
        for candidate in candidates:
            texts = (text, query.replace(PLACEHOLDER, candidate))
            label = None if answers is None else int(candidate in answers)
            yield Row(where, key, texts, label, candidate, answers or ())


def _entity(where: str, node: Any, text: str) -> tuple[int, int]:
    """Returns the range of an entity; the released `end` is its last character."""
    begin, last = (_get(where, node, name, int) for name in ("start", "end"))
    return _range(where, "entity", begin, last + 1, text)


def read_wic(where: str, record: Any, labels: Sequence[str]) -> Iterator[Row]:
    """Yields the two sentences of a record of WiC, with the word marked in each."""
    texts = tuple(_get(where, record, f"sentence{number}", str) for number in (1, 2))
    spans = []
    for number, text in enumerate(texts):
        bounds = (_get(where, record, f"{side}{number + 1}", int) for side in ("start", "end"))
        spans.append((number, *_range(where, "word", *bounds, text)))
    label = _label(where, record, labels)
    yield Row(where, (_idx(where, record),), texts, label, spans=tuple(spans))


def read_wsc(where: str, record: Any, labels: Sequence[str]) -> Iterator[Row]:
    """Yields the text of a record of WSC, with noun phrase and pronoun marked.

    The released positions count words between white space.
    """
    text, target = _get(where, record, "text", str), _get(where, record, "target", dict)
    words = [match.span() for match in re.finditer(r"\S+", text)]
    spans = []
    for number in (1, 2):
        marked = _get(where, target, f"span{number}_text", str)
        first = _get(where, target, f"span{number}_index", int)
        last = first + len(marked.split()) - 1
        if not 0 <= first <= last < len(words):
            raise UserError(
                f"{where}: span{number}: got the words from {first} to {last} ({marked!r}), "
                f"expected some of the {len(words)} words of the text, counted from 0; fix the file"
            )
        begin, end = words[first][0], words[last][1]
        # Without punctuation after the last word, where the text has the same letters.
        if text[begin:].casefold().startswith(marked.casefold()):
            end = begin + len(marked)
        spans.append((0, begin, end))
    label = _label(where, record, labels)
    yield Row(where, (_idx(where, record),), (text,), label, spans=tuple(spans))


def _range(where: str, kind: str, begin: int, end: int, text: str) -> tuple[int, int]:
    if not 0 <= begin < end <= len(text):
        raise UserError(
            f"{where}: {kind}: got the characters from {begin} to {end}, expected a range in the "
            f"{len(text)} characters of its text; fix the file"
        )
    return begin, end


def _get(where: str, node: Any, key: str, kind: type) -> Any:
    return get_field(where, node, key, kind, _LAYOUT)


def _idx(where: str, node: Mapping[str, Any]) -> int:
    return _get(where, node, "idx", int)


def _label(where: str, node: Mapping[str, Any], labels: Sequence[str]) -> int | None:
    """Returns the class of a record: a JSON boolean, an index or a word, in any case."""
    if "label" not in node:
        return None
    known = [label.casefold() for label in labels]
    spelled = str(node["label"]).casefold()
    if spelled not in known:
        raise UserError(
            f"{where}: label: got {node['label']!r}, expected one of {', '.join(labels)}; fix the "
            "file"
        )
    return known.index(spelled)
