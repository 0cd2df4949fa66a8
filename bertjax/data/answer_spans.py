"""Spans of a context that may be answers, by the scores of where they begin and end."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64

from bertjax.data.answer_windows import AnswerWindows
from bertjax.data.squad_questions import SquadQuestions

_WINDOWS_AT_A_TIME = 1024
"""Bounds the memory of all pairs of places: some megabytes."""


class Found(NamedTuple):
    """A text and the scores (logits) of its first and its last token."""

    text: str
    start_score: float
    end_score: float

    @property
    def score(self) -> float:
        return self.start_score + self.end_score


@dataclasses.dataclass(frozen=True)
class Spans:
    """All spans that may be answers, those of a question together, its best ones first.

    Attributes:
      window: In which window each is found.
      start: The place in its sequence of its first token.
      end: That of its last token.
      start_score: What the first one is scored with.
      end_score: What the last one is scored with.
    """

    window: Int64[np.ndarray, " s"]
    start: Int64[np.ndarray, " s"]
    end: Int64[np.ndarray, " s"]
    start_score: Float64[np.ndarray, " s"]
    end_score: Float64[np.ndarray, " s"]

    @classmethod
    def among(
        cls,
        windows: AnswerWindows,
        start_scores: Float[np.ndarray, "n K"],
        start_places: Int[np.ndarray, "n K"],
        end_scores: Float[np.ndarray, "n J"],
        end_places: Int[np.ndarray, "n J"],
        max_answer_length: int,
    ) -> "Spans":
        """All pairs of places that BERT's rules allow; of equal scores the first pairs first."""
        starts_well = _may_start(windows, start_places) & (start_scores > -np.inf)
        ends_well = _inside(windows, end_places) & (end_scores > -np.inf)
        found = []
        for begin in range(0, len(windows), _WINDOWS_AT_A_TIME):
            rows = slice(begin, begin + _WINDOWS_AT_A_TIME)
            length = end_places[rows, None, :] - start_places[rows, :, None] + 1
            allowed = starts_well[rows, :, None] & ends_well[rows, None, :]
            row, i, j = np.nonzero(allowed & (length >= 1) & (length <= max_answer_length))
            found.append((row + begin, i, j))
        window, i, j = (np.concatenate(column) for column in zip(*found, strict=True))
        start_score = start_scores[window, i].astype(np.float64)
        end_score = end_scores[window, j].astype(np.float64)
        order = np.lexsort((-(start_score + end_score), windows.question[window]))
        columns = (window, start_places[window, i], end_places[window, j], start_score, end_score)
        return cls(*(column[order] for column in columns))

    def texts(self, questions: SquadQuestions, windows: AnswerWindows) -> Iterator[Iterator[Found]]:
        """For every question the texts of its spans as they are written, some several times."""
        begins = windows.characters(self.window, self.start)[:, 0]
        ends = windows.characters(self.window, self.end)[:, 1]
        numbers = np.arange(len(questions) + 1)
        bounds = np.searchsorted(windows.question[self.window], numbers).tolist()
        for number, context in enumerate(questions.context_of):
            spans = range(bounds[number], bounds[number + 1])
            yield self._cut(questions.contexts[context], spans, begins, ends)

    def _cut(
        self,
        context: str,
        spans: range,
        begins: Int[np.ndarray, " s"],
        ends: Int[np.ndarray, " s"],
    ) -> Iterator[Found]:
        for span in spans:
            # Tokens that cover nothing may stand at the ends.
            if text := context[begins[span] : ends[span]].strip():
                yield Found(text, float(self.start_score[span]), float(self.end_score[span]))


def _inside(windows: AnswerWindows, places: Int[np.ndarray, "n K"]) -> Bool[np.ndarray, "n K"]:
    """Whether places lie in the context part of their window."""
    begin, end = windows.context_begin[:, None], windows.context_end[:, None]
    return (places >= begin) & (places < end)


def _may_start(windows: AnswerWindows, places: Int[np.ndarray, "n K"]) -> Bool[np.ndarray, "n K"]:
    """Whether tokens lie there and have their maximum context in this window."""
    inside = _inside(windows, places)
    tokens = windows.pairs.starts[:, None] + np.where(inside, places, 0)
    return inside & windows.maximum_context[tokens]
