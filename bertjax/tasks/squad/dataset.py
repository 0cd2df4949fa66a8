"""The dataset of extractive question answering in SQuAD's format: spans of a context, or none."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from bertjax.constraints import AnyText, Finite, OneOf, PositiveInt, Relation
from bertjax.data.layout import ranges
from bertjax.errors import UserError
from bertjax.metrics import answers as metrics_answers
from bertjax.tasks import dataset
from bertjax.tasks import files as tasks_files
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.sequences import Pairs
from bertjax.tasks.squad import answers as squad_answers
from bertjax.tasks.squad import files as squad_files
from bertjax.tasks.squad import windows as squad_windows
from bertjax.tasks.squad.files import SquadQuestions

_SHOWN = 3
"""Candidates that the user is shown."""

Fields = Mapping[str, Any]

FILES = {
    version: {split: (f"{split}-v{version}.json",) for split in ("train", "dev", "test")}
    for version in ("1.1", "2.0")
}
"""The released files, of questions that all have an answer and of those of which some have none."""


class DataFields(dataset.DataFields):
    """`config.data`.

    Attributes:
      unanswerable: Whether questions may have no answer (SQuAD 2.0).
      train_file: Name of the file of a split; "" for the released name.
      dev_file: Likewise.
      test_file: Likewise.
      on_mismatch: What to do with an answer that is not where the file has it.
      doc_stride: Tokens by which a window moves on.
      max_query_length: Tokens of a question; more are cut.
      max_answer_length: Tokens of an answer.
      null_threshold: How much better no answer has to score; None for the value best on dev.
    """

    unanswerable: bool
    train_file: AnyText
    dev_file: AnyText
    test_file: AnyText
    on_mismatch: Annotated[str, OneOf(squad_files.ON_MISMATCH)]
    doc_stride: PositiveInt
    max_query_length: PositiveInt
    max_answer_length: PositiveInt
    null_threshold: Finite | None

    # Of [CLS] and separators there are at least three.
    relations = (
        Relation(
            ("max_seq_length", "max_query_length"),
            lambda length, question: question + 3 < length,
            "room for a context next to the question",
            "raise max_seq_length or lower max_query_length",
        ),
        Relation(
            ("doc_stride", "max_seq_length", "max_query_length"),
            lambda stride, length, question: stride <= length - question - 3,
            "windows that overlap or touch",
            lambda stride, length, question: f"lower doc_stride to {length - question - 3} or less",
        ),
    )


class Dataset:
    """See `interfaces.Dataset`. A sequence is a window of a context with its question."""

    task_fields = MappingProxyType({})

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes every split that is there.

        Args:
          data: Folder of the files.
          task: `config.task`.
          fields: `config.data`: the names of the files (`train_file` and so on, empty for those
            that were released), `unanswerable`, `on_mismatch`, `doc_stride`, `max_query_length`,
            `max_answer_length`, and `null_threshold`, None for the one that is best on dev.
          spec: The encoding: tokenizer, lengths and batch sizes.

        Raises:
          UserError: something is missing or does not fit.
        """
        if spec.max_chars_per_word:
            raise UserError(
                "answering questions requires a model that reads pieces of words, this one reads "
                "characters: give --init another run"
            )
        self.name = "squad2" if fields["unanswerable"] else "squad1"
        self._fields = fields
        self._threshold = fields["null_threshold"] or 0.0
        usual = FILES["2.0" if fields["unanswerable"] else "1.1"]
        self.questions, self.windows, self.batches = {}, {}, {}
        for split, path in tasks_files.find(data, usual, fields).items():
            questions = spec.subsample(split, _questions(path, split, fields))
            windows = _windows(questions, fields, spec, str(path))
            self.questions[split], self.windows[split] = questions, windows
            labels = windows.labels if split == "train" else None
            self.batches[split] = spec.batches(split, _marked(windows), labels)
        self.dev = ("dev",)
        self.test = ("test",) if "test" in self.batches else ()
        self.left_out = {split: found.left_out for split, found in self.questions.items()}

    def score(self, split: str, predictions: Float[np.ndarray, "n S"]) -> dict[str, float]:
        """Exact match and F1; where a question may have no answer, by the best threshold of dev."""
        questions = self.questions[split]
        if not questions.labelled:
            return {}
        found = self._answers(split, predictions)
        references = questions.references()
        if not self._fields["unanswerable"]:
            scores = metrics_answers.score_squad_v1(found.predictions(), references)
            named = {name: scores[name] / 100 for name in ("exact_match", "f1")}
            return named | _of_characters(found.predictions(), references)
        rules = metrics_answers.score_squad_v2
        if split == "dev" and self._fields["null_threshold"] is None:
            texts = found.predictions(float("inf"))
            self._threshold = rules(texts, references, found.odds())["best_f1_thresh"]
        texts = found.predictions(self._threshold)
        scores = rules(texts, references)
        kinds = [name for name in scores if name.endswith(("exact", "f1"))]
        named = {name: scores[name] / 100 for name in kinds} | _of_characters(texts, references)
        return named | {"null_threshold": self._threshold}

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """F1 on the dev split; of answers in Chinese that of their characters."""
        return {"dev/score": values.get("dev/character_f1", values["dev/f1"])}

    def write(
        self, split: str, predictions: Float[np.ndarray, "n S"], folder: pathlib.Path
    ) -> None:
        """`predictions.json`, `nbest_predictions.json` and `null_odds.json` of a split."""
        squad_answers.write(folder / split, self._answers(split, predictions), self._threshold)

    def _answers(
        self, split: str, predictions: Float[np.ndarray, "n S"]
    ) -> squad_answers.FoundAnswers:
        return _found(self.questions[split], self.windows[split], predictions, self._fields)


OUTPUT = "predict"
"""The method of `tasks/squad/head.py` that tells what `ask` needs."""


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """A question and its context a line, with a tab between; or a JSON object with these names.

    An answer has `"truncated": true` where the question was too long for the recipe.

    Raises:
      UserError: a line is something else.
    """
    rows = [dataset.parse_fields(line, ("question", "context")) for line in lines]
    questions = SquadQuestions(
        ids=[str(number) for number in range(len(rows))],
        titles=[""] * len(rows),
        questions=[given["question"] for given in rows],
        contexts=[given["context"] for given in rows],
        context_of=np.arange(len(rows)),
        answers=[()] * len(rows),
        answer_starts=[()] * len(rows),
        impossible=np.zeros(len(rows), bool),
        labelled=False,
    )
    windows = _windows(questions, fields, spec)
    sizes = map(len, spec.tokenizer.encode_batch(questions.questions))
    truncated = [size > fields["max_query_length"] for size in sizes]

    def said(predictions: Float[np.ndarray, "n S"]) -> list[dict[str, Any]]:
        found = _found(questions, windows, predictions, fields)
        texts = found.predictions(fields["null_threshold"] or 0.0).values()
        best = [[candidate._asdict() for candidate in each[:_SHOWN]] for each in found.n_best]
        odds = found.odds().values() or [None] * len(rows)
        return [
            given
            | {"answer": text, "n_best": candidates}
            | ({} if null is None else {"null_odds": null})
            | ({"truncated": True} if cut else {})
            for given, text, candidates, null, cut in zip(
                rows, texts, best, odds, truncated, strict=True
            )
        ]

    return PredictionRequest(spec.batches("predict", _marked(windows), None), said)


def _windows(
    questions: SquadQuestions, fields: Fields, spec: EncodingSpec, source: str = ""
) -> squad_windows.AnswerWindows:
    return squad_windows.encode(
        questions,
        spec.tokenizer,
        max_seq_length=spec.max_seq_length,
        doc_stride=fields["doc_stride"],
        max_query_length=fields["max_query_length"],
        cls_last=spec.cls_last,
        source=source,
    )


def _found(
    questions: SquadQuestions,
    windows: squad_windows.AnswerWindows,
    predictions: Float[np.ndarray, "n S"],
    fields: Fields,
) -> squad_answers.FoundAnswers:
    """What the numbers mean that `tasks/squad/head.py` predicts."""
    starts, start_places, ends, end_places = np.split(predictions[:, :-1], 4, axis=1)
    return squad_answers.find(
        questions,
        windows,
        starts,
        start_places.astype(np.int64),
        ends,
        end_places.astype(np.int64),
        predictions[:, -1] if fields["unanswerable"] else None,
        n_best_size=starts.shape[1],
        max_answer_length=fields["max_answer_length"],
    )


def _of_characters(
    predictions: Mapping[str, str], references: metrics_answers.Answers
) -> dict[str, float]:
    """What is to be known beside the official scores where words are not parted by spaces."""
    if not metrics_answers.is_mostly_chinese(references):
        return {}
    return {"character_f1": metrics_answers.character_f1(predictions, references) / 100}


def _marked(windows: squad_windows.AnswerWindows) -> Pairs:
    """The sequences, with `answer_places`: 1 for tokens of the context, 2 for [CLS], else 0."""
    sizes = windows.context_end - windows.context_begin
    marks = np.zeros(len(windows.pairs.tokens), np.int32)
    marks[ranges(windows.pairs.starts + windows.context_begin, sizes)] = 1
    marks[windows.pairs.starts + windows.cls] = 2
    return dataclasses.replace(windows.pairs, columns={"answer_places": marks})


def _questions(path: pathlib.Path, split: str, fields: Fields) -> SquadQuestions:
    on_mismatch = fields["on_mismatch"] if split == "train" else "keep"
    questions = squad_files.read(path, labelled=split != "test", on_mismatch=on_mismatch)
    if split != "test" and not fields["unanswerable"] and questions.impossible.any():
        raise UserError(
            f"{path}: {questions.impossible.sum()} questions have no answer, the first is "
            f"{questions.ids[int(questions.impossible.argmax())]!r}: that is SQuAD 2.0, use "
            "configs/squad.py:squad2"
        )
    return questions
