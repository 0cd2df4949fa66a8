"""Select answers from start and end scores: the n best spans of each question, and their files.

Implements BERT's released `run_squad.py` (Devlin et al. 2019, sections 4.2 and 4.3), with two
differences: an answer is the exact text of the context, and a question without a valid span is
answered with "" instead of the word "empty".
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
from bertjax.tasks.squad.windows import AnswerWindows, ScoredAnswer, Spans

NO_SPAN_ODDS = 1e6
"""Null odds of a question without a valid span: higher than any difference of scores."""


class Candidate(NamedTuple):
    """One of the n best answers to a question; probabilities are normalised over these."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclasses.dataclass(frozen=True)
class PredictedAnswers:
    """The answers to all questions.

    Attributes:
      ids: The id of each question.
      n_best: The best distinct answers to each question, in descending order. For SQuAD 2.0 one of
        them is "", whose start and end logits are half of its score each.
      null_scores: The score (sum of two logits) of "" for each question; None for SQuAD 1.1.
      null_odds: The score of "" minus that of the best non-empty answer; None for SQuAD 1.1.
    """

    ids: list[str]
    n_best: list[list[Candidate]]
    null_scores: Float64[np.ndarray, " n"] | None
    null_odds: Float64[np.ndarray, " n"] | None

    def predictions(self, threshold: float = 0.0) -> dict[str, str]:
        """Returns the answer to each question, by its id.

        Args:
          threshold: A question with null odds above this is answered with "" (SQuAD 2.0). With
            infinity every answer is text, as the search for the best threshold requires.
        """
        texts = [_best_text(candidates) for candidates in self.n_best]
        if self.null_odds is not None:
            above = (self.null_odds > threshold).tolist()
            texts = ["" if empty else text for text, empty in zip(texts, above, strict=True)]
        return dict(zip(self.ids, texts, strict=True))

    def odds(self) -> dict[str, float]:
        """Returns the null odds by question id; none for SQuAD 1.1."""
        if self.null_odds is None:
            return {}
        return dict(zip(self.ids, self.null_odds.tolist(), strict=True))


def find(
    questions: SquadQuestions,
    windows: AnswerWindows,
    start_scores: Float[np.ndarray, "n K"],
    start_positions: Int[np.ndarray, "n K"],
    end_scores: Float[np.ndarray, "n J"],
    end_positions: Int[np.ndarray, "n J"],
    null_scores: Float[np.ndarray, " n"] | None = None,
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> PredictedAnswers:
    """Finds the best answers among the best start and end positions of every window.

    A valid span lies in the window's context, starts at a token with its maximum context in this
    window, and has at most `max_answer_length` tokens. Equal scores keep the order of windows and
    positions.

    Args:
      questions: The questions.
      windows: The windows of the questions.
      start_scores: Logits of the K best start positions of each window.
      start_positions: These positions in the sequence, in descending order of score.
      end_scores: Logits of the J best end positions of each window.
      end_positions: These positions in the sequence, in descending order of score.
      null_scores: Sum of the start and end logit of [CLS] of each window; the score of "" is the
        minimum over the windows of a question. None for SQuAD 1.1.
      n_best_size: Number of answers per question.
      max_answer_length: Maximum length of an answer in tokens.

    Raises:
      UserError: a size is below 1, or a score is infinite or NaN.
    """
    for name, value in (("n_best_size", n_best_size), ("max_answer_length", max_answer_length)):
        if value < 1:
            raise UserError(f"{name}: got {value}, expected >= 1")
    scores = [start_scores, end_scores]
    if null_scores is not None:
        scores.append(null_scores[:, None])
    _check_scores(questions, windows, scores)
    spans = Spans.from_scores(
        windows, start_scores, start_positions, end_scores, end_positions, max_answer_length
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
    return PredictedAnswers(ids=questions.ids, n_best=n_best, null_scores=nulls, null_odds=odds)


def write(folder: str | pathlib.Path, found: PredictedAnswers, threshold: float = 0.0) -> None:
    """Writes `predictions.json`, `nbest_predictions.json` and, for SQuAD 2.0, `null_odds.json`.

    These are the inputs of the official scorers, by question id. Each file is written atomically.

    Args:
      folder: The folder to write to.
      found: The answers.
      threshold: See `PredictedAnswers.predictions`.

    Raises:
      UserError: a file cannot be written.
    """
    folder = pathlib.Path(folder)
    rows = [[candidate._asdict() for candidate in best] for best in found.n_best]
    write_json(folder / "predictions.json", found.predictions(threshold))
    write_json(folder / "nbest_predictions.json", dict(zip(found.ids, rows, strict=True)))
    if found.null_odds is not None:
        write_json(folder / "null_odds.json", found.odds())


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Writes a UTF-8 JSON file without escapes, atomically.

    Raises:
      UserError: the file cannot be written.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=4)
    io_files.write_output(path, f"{text}\n")


def _n_best(found: Iterable[ScoredAnswer], null: float | None, size: int) -> list[Candidate]:
    """Returns the first `size` distinct texts; for SQuAD 2.0 always with "", added if missing."""
    half = 0.0 if null is None else null / 2
    empty = ScoredAnswer("", half, half)
    kept: dict[str, ScoredAnswer] = {}
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
        # Minus infinity is valid: it marks positions that are not in the context.
        wrong = np.flatnonzero(~(array < np.inf).all(axis=1))
        if len(wrong):
            raise UserError(
                f"question {questions.ids[windows.question[wrong[0]]]!r}: got scores that are NaN "
                "or infinite: training has diverged; train again with a lower learning rate"
            )
