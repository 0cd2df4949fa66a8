"""Convert logits to SuperGLUE answers, score them by the official metrics, write predictions.

There is a class for each kind of answer. Predictions map the key of an example to its answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int

from bertjax.errors import UserError
from bertjax.io.files import get_field
from bertjax.metrics import answers, classification
from bertjax.tasks.superglue.records import Key, Row

Predictions = Mapping[Key, Any]

_LAYOUT = "a line of a SuperGLUE prediction file"


class AnswerKind(Protocol):
    """Answers of one kind.

    Attributes:
      metrics: Names of the official metrics.
      labels: Spelling of each class in the released files and in predictions.
    """

    metrics: tuple[str, ...]
    labels: tuple[str, ...]

    def choose(self, rows: Sequence[Row], logits: Float[np.ndarray, "n C"]) -> Predictions:
        """Returns the answers that have the highest logits."""
        ...

    def score(self, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
        """Returns the official metrics, as fractions."""
        ...

    def records(self, predictions: Predictions) -> Iterator[dict[str, Any]]:
        """Yields the lines of the prediction file."""
        ...

    def parse(self, where: str, record: Any) -> Iterator[tuple[Key, Any]]:
        """Yields the answers of a line of a prediction file."""
        ...


def macro_f1(predictions: Int[np.ndarray, " n"], references: Int[np.ndarray, " n"]) -> float:
    """Mean F1 of the three classes of CB; one that neither occurs nor is predicted counts 0."""
    return float(np.mean([classification.f1(predictions, references, c) for c in range(3)]))


_METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": classification.accuracy,
    "macro_f1": macro_f1,
    "matthews": classification.matthews,
}


def _most_likely_classes(rows: Sequence[Row], logits: Float[np.ndarray, "n C"]) -> Predictions:
    found = logits.argmax(axis=-1).tolist()
    return {row.key: value for row, value in zip(rows, found, strict=True)}


class ClassAnswers:
    """One class for each example, written as its name, or as a number."""

    def __init__(
        self,
        labels: tuple[str, ...],
        metrics: tuple[str, ...] = ("accuracy",),
        *,
        as_numbers: bool = False,
    ):
        self.labels, self.metrics = labels, metrics
        self.words: Sequence[str | int] = range(len(labels)) if as_numbers else labels

    def choose(self, rows: Sequence[Row], logits: Float[np.ndarray, "n C"]) -> Predictions:
        """Returns the index of the class of each example."""
        return _most_likely_classes(rows, logits)

    def score(self, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
        """Returns the metrics that the task has."""
        found = np.array([predictions[row.key] for row in rows])
        expected = np.array([row.label for row in rows])
        return {name: _METRICS[name](found, expected) for name in self.metrics}

    def records(self, predictions: Predictions) -> Iterator[dict[str, Any]]:
        """Yields `{"idx": 0, "label": "true"}`."""
        for (idx,), value in predictions.items():
            yield {"idx": idx, "label": self.words[value]}

    def parse(self, where: str, record: Any) -> Iterator[tuple[Key, Any]]:
        """Yields the class of the example."""
        idx = get_field(where, record, "idx", int, _LAYOUT)
        label = get_field(where, record, "label", type(self.words[0]), _LAYOUT)
        if label not in self.words:
            raise UserError(
                f"{where}: label: got {label!r}, expected one of {', '.join(map(str, self.words))}"
            )
        yield (idx,), list(self.words).index(label)


class AnswerSets:
    """A set of right answers for each question: MultiRC (Khashabi et al. 2018)."""

    labels = ("0", "1")
    metrics = ("f1a", "exact_match")

    def choose(self, rows: Sequence[Row], logits: Float[np.ndarray, "n C"]) -> Predictions:
        """Returns 1 for the answers that are more likely right than wrong, else 0."""
        return _most_likely_classes(rows, logits)

    def score(self, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
        """Returns F1 over all answers, and the share of questions without a wrong one."""
        found = np.array([predictions[row.key] for row in rows])
        expected = np.array([row.label for row in rows])
        exact: dict[Key, bool] = {}
        for row, right in zip(rows, (found == expected).tolist(), strict=True):
            exact[row.key[:2]] = exact.get(row.key[:2], True) and right
        f1a = classification.f1(found, expected)
        return {"f1a": f1a, "exact_match": float(np.mean(list(exact.values())))}

    def records(self, predictions: Predictions) -> Iterator[dict[str, Any]]:
        """Yields `{"idx": 0, "passage": {"questions": [{"idx": 0, "answers": [...]}]}}`."""
        passages: dict[int, dict[int, list[dict[str, int]]]] = {}
        for (passage, question, answer), value in predictions.items():
            questions = passages.setdefault(passage, {})
            questions.setdefault(question, []).append({"idx": answer, "label": value})
        for passage, questions in passages.items():
            listed = [{"idx": idx, "answers": found} for idx, found in questions.items()]
            yield {"idx": passage, "passage": {"questions": listed}}

    def parse(self, where: str, record: Any) -> Iterator[tuple[Key, Any]]:
        """Yields the label of every answer of the passage."""
        passage = get_field(where, record, "passage", dict, _LAYOUT)
        for question in get_field(where, passage, "questions", list, _LAYOUT):
            for answer in get_field(where, question, "answers", list, _LAYOUT):
                nodes = (record, question, answer)
                key = tuple(get_field(where, node, "idx", int, _LAYOUT) for node in nodes)
                label = get_field(where, answer, "label", int, _LAYOUT)
                if label not in (0, 1):
                    raise UserError(f"{where}: label: got {label}, expected 0 or 1")
                yield key, label


class EntityAnswers:
    """An entity of the passage for each query: ReCoRD (Zhang et al. 2018)."""

    labels = ("0", "1")
    metrics = ("f1", "exact_match")

    def choose(self, rows: Sequence[Row], logits: Float[np.ndarray, "n C"]) -> Predictions:
        """Returns the candidate that is most likely right; of equal ones the first."""
        best: dict[Key, tuple[float, str]] = {}
        margins = (logits[:, 1] - logits[:, 0]).tolist()
        for row, margin in zip(rows, margins, strict=True):
            if row.key not in best or margin > best[row.key][0]:
                best[row.key] = margin, row.candidate
        return {key: candidate for key, (_, candidate) in best.items()}

    def score(self, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
        """Returns token F1 and exact match with the best answer, by the rules of SQuAD 1.1.

        The official script of ReCoRD has the same rules.
        """
        accepted = {str(row.key): row.answers for row in rows}
        given = {str(key): text for key, text in predictions.items()}
        found = answers.score_squad_v1(given, accepted)
        return {name: found[name] / 100 for name in self.metrics}

    def records(self, predictions: Predictions) -> Iterator[dict[str, Any]]:
        """Yields `{"idx": 0, "label": "Oslo"}`, with the `idx` of the query."""
        for (idx,), text in predictions.items():
            yield {"idx": idx, "label": text}

    def parse(self, where: str, record: Any) -> Iterator[tuple[Key, Any]]:
        """Yields the text of the answer."""
        idx = get_field(where, record, "idx", int, _LAYOUT)
        yield (idx,), get_field(where, record, "label", str, _LAYOUT)
