"""Read the JSON files of SQuAD 1.1 and 2.0, and of data sets in the same format, as columns.

Texts are not normalised, since answers are located by character offsets.
"""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int64

from bertjax.data.random import sample
from bertjax.errors import UserError, nearest
from bertjax.io.files import get_field, load_json

UNKNOWN = -1
"""Offset of an answer that does not exist or whose location is unknown."""


@dataclasses.dataclass(frozen=True)
class SquadQuestions:
    """The questions of a file, in file order.

    Attributes:
      ids: The id of each question.
      titles: The title of each question's article; "" if the file has none.
      questions: The text of each question.
      contexts: The paragraphs with questions, each once.
      context_of: The index in `contexts` of each question's paragraph.
      answers: The accepted answers of each question; none if unanswerable or unlabelled.
      answer_starts: The character offset in the context of each answer, or UNKNOWN.
      impossible: Whether each question is marked as unanswerable.
      labelled: Whether every question has answers or is marked as unanswerable.
      left_out: Ids of questions that were skipped because of wrong offsets.
    """

    ids: list[str]
    titles: list[str]
    questions: list[str]
    contexts: list[str]
    context_of: Int64[np.ndarray, " n"]
    answers: list[tuple[str, ...]]
    answer_starts: list[tuple[int, ...]]
    impossible: Bool[np.ndarray, " n"]
    labelled: bool = True
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def references(self) -> dict[str, tuple[str, ...]]:
        """Returns the accepted answers by question id, the input of `bertjax.metrics.answers`."""
        return dict(zip(self.ids, self.answers, strict=True))

    def first_answers(self) -> Int64[np.ndarray, "n 2"]:
        """Returns the character range of each question's first answer, outer spaces excluded.

        Both ends are UNKNOWN where there is no answer or its location is unknown.
        """
        reach = np.full((len(self), 2), UNKNOWN, np.int64)
        for number, (answers, starts) in enumerate(
            zip(self.answers, self.answer_starts, strict=True)
        ):
            if answers and starts[0] != UNKNOWN:
                text = answers[0]
                begin = starts[0] + len(text) - len(text.lstrip())
                reach[number] = begin, begin + len(text.strip())
        return reach

    def sample(self, size: int, seed: int) -> "SquadQuestions":
        """Returns `size` random questions, sampled without replacement, in file order."""
        return self.take(sample(len(self), size, seed))

    def take(self, kept: Int[np.ndarray, " m"]) -> "SquadQuestions":
        """Returns the questions with these indices, and only their contexts."""
        contexts, context_of = np.unique(self.context_of[kept], return_inverse=True)
        return dataclasses.replace(
            self,
            ids=[self.ids[i] for i in kept],
            titles=[self.titles[i] for i in kept],
            questions=[self.questions[i] for i in kept],
            contexts=[self.contexts[i] for i in contexts],
            context_of=context_of.astype(np.int64),
            answers=[self.answers[i] for i in kept],
            answer_starts=[self.answer_starts[i] for i in kept],
            impossible=self.impossible[kept],
        )


ON_MISMATCH = ("stop", "skip", "keep")
"""Handling of questions with an answer that is not at its `answer_start`."""

_LAYOUT = "SQuAD's layout"
_MAX_QUOTE_LENGTH = 40


@dataclasses.dataclass(frozen=True)
class _Question:
    """A question of the file; `misplaced` are the indices of answers with wrong offsets."""

    identity: str
    title: str
    text: str
    context: int
    answers: tuple[str, ...]
    starts: tuple[int, ...]
    impossible: bool
    misplaced: tuple[int, ...]

    def known_starts(self) -> tuple[int, ...]:
        return tuple(
            UNKNOWN if number in self.misplaced else start
            for number, start in enumerate(self.starts)
        )


def read(
    path: str | pathlib.Path, *, labelled: bool = True, on_mismatch: str = "stop"
) -> SquadQuestions:
    """Reads a file in SQuAD's layout.

    Args:
      path: The file.
      labelled: Whether every question must have answers or be marked as unanswerable; False for a
        test split.
      on_mismatch: Handling of an answer that is not at its `answer_start`: `stop` with an error,
        `skip` the question, or `keep` it with an unknown location, which suffices for scoring.

    Raises:
      UserError: the file is malformed; names the location in the file.
    """
    if on_mismatch not in ON_MISMATCH:
        raise UserError(f"unknown on_mismatch={on_mismatch!r}: {nearest(on_mismatch, ON_MISMATCH)}")
    contexts: list[str] = []
    questions = list(_walk(str(path), load_json(pathlib.Path(path), _LAYOUT), contexts, labelled))
    if not questions:
        raise UserError(f"{path} has no questions: expected data[].paragraphs[].qas[]")
    misplaced = [question for question in questions if question.misplaced]
    if misplaced and on_mismatch == "stop":
        _refuse_misplaced(str(path), contexts, misplaced, len(questions))
    if on_mismatch != "skip":
        return _columns(questions, contexts)
    if len(misplaced) == len(questions):
        raise UserError(
            f"{path}: each of the {len(questions)} questions has an answer that is not at its "
            "answer_start, so all would be skipped; fix the file"
        )
    kept = [question for question in questions if not question.misplaced]
    return _columns(kept, contexts, left_out=tuple(question.identity for question in misplaced))


def is_version_2(path: str | pathlib.Path) -> bool:
    """Returns whether a file is SQuAD 2.0, where questions may have no answer.

    It is if a question is marked as unanswerable; else by its `version`; and without a version if
    questions have the key `is_impossible`.
    """
    content = load_json(pathlib.Path(path), _LAYOUT)
    questions = [raw for *_, listed in _paragraphs(str(path), content) for raw in listed]
    version = str(content.get("version", "")).lower().removeprefix("v")
    if any(raw.get("is_impossible") for raw in questions) or version.startswith("2"):
        return True
    return not version.startswith("1") and any("is_impossible" in raw for raw in questions)


def _columns(
    questions: list[_Question], contexts: list[str], left_out: tuple[str, ...] = ()
) -> SquadQuestions:
    found = SquadQuestions(
        ids=[question.identity for question in questions],
        titles=[question.title for question in questions],
        questions=[question.text for question in questions],
        contexts=contexts,
        context_of=np.array([question.context for question in questions], np.int64),
        answers=[question.answers for question in questions],
        answer_starts=[question.known_starts() for question in questions],
        impossible=np.array([question.impossible for question in questions], bool),
        labelled=all(question.answers or question.impossible for question in questions),
        left_out=left_out,
    )
    return found.take(np.arange(len(found)))


def _walk(path: str, content: Any, contexts: list[str], labelled: bool) -> Iterator[_Question]:
    """Yields all questions in order, and appends the paragraphs to `contexts`."""
    seen: dict[str, str] = {}
    for place, title, context, questions in _paragraphs(path, content):
        contexts.append(context)
        for number, raw in enumerate(questions):
            at = f"{place}.qas[{number}]"
            identity = _field(f"{path}: {at}", raw, "id", str)
            if identity in seen:
                raise UserError(
                    f"{path}: {at} has the id {identity!r} of {seen[identity]}: expected distinct "
                    "ids; rename or remove one"
                )
            seen[identity] = at
            where = f"{path}: question {identity!r}"
            if not context.strip():
                raise UserError(
                    f"{where}: {place}.context is empty: expected a paragraph; fix or remove it"
                )
            yield _question(where, raw, title, context, len(contexts) - 1, labelled)


def _paragraphs(path: str, content: Any) -> Iterator[tuple[str, str, str, list[Any]]]:
    """Yields (location in the file, title, context, questions) of every paragraph."""
    for number, article in enumerate(_field(f"{path}: the file", content, "data", list)):
        place = f"data[{number}]"
        paragraphs = _field(f"{path}: {place}", article, "paragraphs", list)
        title = _field(f"{path}: {place}", article, "title", str) if "title" in article else ""
        for inner, paragraph in enumerate(paragraphs):
            where = f"{place}.paragraphs[{inner}]"
            context = _field(f"{path}: {where}", paragraph, "context", str)
            yield where, title, context, _field(f"{path}: {where}", paragraph, "qas", list)


def _question(
    where: str, raw: dict[str, Any], title: str, context: str, number: int, labelled: bool
) -> _Question:
    text = _field(where, raw, "question", str)
    impossible = "is_impossible" in raw and _field(where, raw, "is_impossible", bool)
    listed = _field(where, raw, "answers", list) if labelled or "answers" in raw else []
    locations = [f"{where}: answers[{n}]" for n in range(len(listed))]
    answers = [_field(*item, "text", str) for item in zip(locations, listed, strict=True)]
    starts = [_field(*item, "answer_start", int) for item in zip(locations, listed, strict=True)]
    _check_answers(where, answers, impossible, labelled)
    misplaced = tuple(
        n
        for n, (answer, start) in enumerate(zip(answers, starts, strict=True))
        if _slice(context, start, len(answer)) != answer
    )
    return _Question(
        identity=raw["id"],
        title=title,
        text=text,
        context=number,
        answers=tuple(answers),
        starts=tuple(starts),
        impossible=impossible,
        misplaced=misplaced,
    )


def _check_answers(where: str, answers: list[str], impossible: bool, labelled: bool) -> None:
    for number, answer in enumerate(answers):
        if not answer.strip():
            raise UserError(
                f"{where}: answers[{number}].text is empty: expected text of the context; an "
                'unanswerable question has "answers": [] and "is_impossible": true'
            )
    if answers and impossible:
        raise UserError(
            f"{where} has is_impossible and {len(answers)} answer(s): expected one or the other; "
            "fix the file"
        )
    if labelled and not answers and not impossible:
        raise UserError(
            f'{where} has no answers: expected one or more, or "is_impossible": true; only a test '
            "split may lack them"
        )


def _field(where: str, node: Any, key: str, kind: type) -> Any:
    return get_field(where, node, key, kind, _LAYOUT)


def _slice(context: str, start: int, length: int) -> str:
    return context[start : start + length] if start >= 0 else ""


def _refuse_misplaced(
    path: str, contexts: list[str], misplaced: list[_Question], total: int
) -> None:
    first = misplaced[0]
    number = first.misplaced[0]
    answer, start = first.answers[number], first.starts[number]
    found = _slice(contexts[first.context], start, len(answer))
    raise UserError(
        f"{path}: {len(misplaced)} of {total} questions have an answer that is not at its "
        f"answer_start, the first is {first.identity!r}: at {start} got {_quote(found)}, expected "
        f"{_quote(answer)}; fix the file, or skip such questions in training with "
        "on_mismatch='skip'"
    )


def _quote(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTE_LENGTH else text[: _MAX_QUOTE_LENGTH - 3] + "...")
