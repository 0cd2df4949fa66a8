"""Questions about paragraphs, as columns."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int, Int64

from bertjax.data.randomness import sample

UNKNOWN = -1
"""Stands for a place that is not known, or of an answer that does not exist."""


@dataclasses.dataclass(frozen=True)
class SquadQuestions:
    """The questions of a file, in its order.

    Attributes:
      ids: What each question is called.
      titles: The title of its article; empty where the file has none.
      questions: The questions.
      contexts: The paragraphs that have questions, each once.
      context_of: Which of them each question is about.
      answers: The accepted answers; none where there is no answer or it is not told.
      answer_starts: The character of the context with which each answer begins, or UNKNOWN.
      impossible: Whether the question has no answer.
      labelled: Whether of every question it is known which answers it has, or that it has none.
      left_out: Ids of questions passed over because of where their answers are said to stand.
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
        """The accepted answers by question id, as `bertjax.answer_metrics` wants them."""
        return dict(zip(self.ids, self.answers, strict=True))

    def first_answers(self) -> Int64[np.ndarray, "n 2"]:
        """From which character, up to which, each one's first answer reaches, without outer spaces.

        Both are UNKNOWN where there is no answer or its place is not known.
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
        """So many of the questions, drawn without replacement, in file order."""
        return self.take(sample(len(self), size, seed))

    def take(self, kept: Int[np.ndarray, " m"]) -> "SquadQuestions":
        """Some of the questions by number, and the contexts that these need."""
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
