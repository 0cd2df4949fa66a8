"""Select answers from start and end scores: the best spans of each question, and their files.

The rules are those of BERT's released `run_squad.py` (Devlin et al. 2019, sections 4.2 and 4.3).
Where we differ: an answer is cut out of the context as it is written there, and a question for
which no span is left is answered with "", not with the word "empty".
"""

import dataclasses
import heapq
import json
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int

from bertjax.errors import UserError
from bertjax.io import files as io_files
from bertjax.tasks.squad.files import SquadQuestions
from bertjax.tasks.squad.windows import AnswerWindows, Found, Spans

NO_SPAN_ODDS = 1e6
"""The null odds where there is nothing to answer with: higher than those of any score."""


class Candidate(NamedTuple):
    """One of the best answers to a question; the probability is among these."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclasses.dataclass(frozen=True)
class FoundAnswers:
    """The answers to all questions.

    Attributes:
      ids: What each question is called.
      n_best: The best answers to each, different ones, the best first. Of SQuAD 2.0 one of them is
        "", whose two logits are half of its score each, since only their sum is known.
      null_scores: How high "" is scored, or None by the rules of SQuAD 1.1.
      null_odds: By how much that is above the best answer that is text, or None.
    """

    ids: list[str]
    n_best: list[list[Candidate]]
    null_scores: Float64[np.ndarray, " n"] | None
    null_odds: Float64[np.ndarray, " n"] | None

    def predictions(self, threshold: float = 0.0) -> dict[str, str]:
        """The answer to each question, by its id.

        Args:
          threshold: Of SQuAD 2.0 a question whose null odds are above this is answered with "".
            Infinity always answers with text, which is what a search for the threshold requires.
        """
        texts = [_best_text(candidates) for candidates in self.n_best]
        if self.null_odds is not None:
            above = (self.null_odds > threshold).tolist()
            texts = ["" if empty else text for text, empty in zip(texts, above, strict=True)]
        return dict(zip(self.ids, texts, strict=True))

    def odds(self) -> dict[str, float]:
        """The null odds by question id; none by the rules of SQuAD 1.1."""
        if self.null_odds is None:
            return {}
        return dict(zip(self.ids, self.null_odds.tolist(), strict=True))


def find(
    questions: SquadQuestions,
    windows: AnswerWindows,
    start_scores: Float[np.ndarray, "n K"],
    start_places: Int[np.ndarray, "n K"],
    end_scores: Float[np.ndarray, "n J"],
    end_places: Int[np.ndarray, "n J"],
    null_scores: Float[np.ndarray, " n"] | None = None,
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> FoundAnswers:
    """Finds the best answers among the best places of every window.

    A span begins and ends within the window's context, begins where its first token has its maximum
    context, and is not too long. Equal scores keep the order of windows and places.

    Args:
      questions: The questions.
      windows: Their windows.
      start_scores: How likely (logits) an answer begins at each of some places of each window.
      start_places: Which places of the sequence these are, the best first.
      end_scores: Likewise for its last token.
      end_places: Which places these are.
      null_scores: The sum of both scores of [CLS] in each window, by which a question may have no
        answer; of a question it counts where it is lowest. None for the rules of SQuAD 1.1.
      n_best_size: How many answers are kept of each question.
      max_answer_length: Tokens of the longest answer.

    Raises:
      UserError: a number is impossible, or the scores are not numbers.
    """
    for name, value in (("n_best_size", n_best_size), ("max_answer_length", max_answer_length)):
        if value < 1:
            raise UserError(f"{name}={value}: expected 1 or more")
    scores = [start_scores, end_scores]
    if null_scores is not None:
        scores.append(null_scores[:, None])
    _check_scores(questions, windows, scores)
    spans = Spans.among(
        windows, start_scores, start_places, end_scores, end_places, max_answer_length
    )
    nulls = None
    if null_scores is not None:
        nulls = np.full(len(questions), np.inf)
        np.minimum.at(nulls, windows.question, null_scores.astype(np.float64))
    n_best = []
    for number, found in enumerate(spans.texts(questions, windows)):
        null = None if nulls is None else float(nulls[number])
        n_best.append(_n_best(found, null, n_best_size))
    odds = None
    if nulls is not None:
        odds = np.array([_null_odds(*pair) for pair in zip(n_best, nulls.tolist(), strict=True)])
    return FoundAnswers(ids=questions.ids, n_best=n_best, null_scores=nulls, null_odds=odds)


def write(folder: str | pathlib.Path, found: FoundAnswers, threshold: float = 0.0) -> None:
    """Writes `predictions.json`, `nbest_predictions.json` and, of SQuAD 2.0, `null_odds.json`.

    They are the official scorers' input: UTF-8, by question id, each whole or not there at all.
    """
    folder = pathlib.Path(folder)
    rows = [[candidate._asdict() for candidate in best] for best in found.n_best]
    write_json(folder / "predictions.json", found.predictions(threshold))
    write_json(folder / "nbest_predictions.json", dict(zip(found.ids, rows, strict=True)))
    if found.null_odds is not None:
        write_json(folder / "null_odds.json", found.odds())


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Writes a JSON file in which text stands as it is, whole or not at all.

    Raises:
      UserError: it cannot be written.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=4)
    io_files.write_output(path, f"{text}\n")


def _n_best(found: Iterable[Found], null: float | None, size: int) -> list[Candidate]:
    """The first texts that differ, and "" among them or behind them where that is an answer."""
    half = 0.0 if null is None else null / 2
    empty = Found("", half, half)
    kept: dict[str, Found] = {}
    for span in heapq.merge(found, [] if null is None else [empty], key=lambda span: -span.score):
        if len(kept) == size:
            break
        kept.setdefault(span.text, span)
    if null is not None or not kept:
        kept.setdefault("", empty)
    scores = np.array([span.score for span in kept.values()])
    weights = np.exp(scores - scores.max())
    probabilities = (weights / weights.sum()).tolist()
    return [
        Candidate(span.text, probability, span.start_score, span.end_score)
        for span, probability in zip(kept.values(), probabilities, strict=True)
    ]


def _best_text(candidates: list[Candidate]) -> str:
    return next((candidate.text for candidate in candidates if candidate.text), "")


def _null_odds(candidates: list[Candidate], null: float) -> float:
    for candidate in candidates:
        if candidate.text:
            return null - candidate.start_logit - candidate.end_logit
    return NO_SPAN_ODDS


def _check_scores(
    questions: SquadQuestions, windows: AnswerWindows, scores: list[np.ndarray]
) -> None:
    for array in scores:
        if len(array) != len(windows):
            raise ValueError(f"scores of {len(array)} windows, expected {len(windows)}")
        # Minus infinity is what some models score padding with.
        wrong = np.flatnonzero(~(array < np.inf).all(axis=1))
        if len(wrong):
            raise UserError(
                f"question {questions.ids[windows.question[wrong[0]]]!r}: the model's scores are "
                "not finite numbers: expected a model that has not diverged; train it again with a "
                "lower learning rate"
            )
