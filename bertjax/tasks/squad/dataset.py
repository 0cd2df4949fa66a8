"""Dataset of extractive question answering in SQuAD's format: an answer is a span, or none."""

import dataclasses
import math
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
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest, find_files
from bertjax.tasks.sequences import Pairs
from bertjax.tasks.squad import answers as squad_answers
from bertjax.tasks.squad import files as squad_files
from bertjax.tasks.squad import windows as squad_windows
from bertjax.tasks.squad.files import SquadQuestions

_MAX_SHOWN = 3
"""Number of candidates per question in the answers to user inputs."""

Fields = Mapping[str, Any]

FILES = {
    version: {split: (f"{split}-v{version}.json",) for split in ("train", "dev", "test")}
    for version in ("1.1", "2.0")
}
"""The released files of SQuAD 1.1 (every question has an answer) and 2.0 (some have none)."""


class DataFields(dataset.DataFields):
    """The fields of `config.data`.

    Attributes:
      unanswerable: Whether questions may have no answer (SQuAD 2.0).
      train_file: File name of the train split; "" for the released name.
      dev_file: File name of the dev split; "" for the released name.
      test_file: File name of the test split; "" for the released name.
      on_mismatch: Handling of training questions whose answer is not at its `answer_start`: stop,
        skip or keep.
      doc_stride: Stride of the windows, in tokens of the context.
      max_query_length: Maximum length of a question in tokens; longer ones are truncated.
      max_answer_length: Maximum length of an answer in tokens.
      null_threshold: Null odds above which a question has no answer; None for the best value on
        dev.
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

    # The constant 3: [CLS] and at least two [SEP].
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
    """SQuAD dataset; see `interfaces.Dataset`. One sequence per question and context window."""

    task_fields = MappingProxyType({})

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits.

        Args:
          data: Folder of the files.
          task: `config.task`.
          fields: `config.data`; see `DataFields`.
          spec: The encoding: tokenizer, lengths and batch sizes.

        Raises:
          UserError: train or dev is missing, a file is malformed, or the model reads characters.
        """
        check_reads_tokens(spec)
        self.name = "squad2" if fields["unanswerable"] else "squad1"
        paths = find_files(data, FILES["2.0" if fields["unanswerable"] else "1.1"], fields)
        read = {split: _questions(path, split, fields) for split, path in paths.items()}
        self._encode(read, paths, fields, spec)

    def _encode(
        self,
        read: Mapping[str, SquadQuestions],
        paths: Mapping[str, str | pathlib.Path],
        fields: Fields,
        spec: EncodingSpec,
    ) -> None:
        """Encodes the questions of each split; `paths` are for messages."""
        self._fields, self._threshold = fields, fields["null_threshold"] or 0.0
        self.questions, self.windows, self.batches = {}, {}, {}
        for split, every in read.items():
            questions = spec.subsample(split, every)
            windows = _windows(questions, fields, spec, str(paths[split]))
            self.questions[split], self.windows[split] = questions, windows
            labels = windows.labels if split == "train" else None
            self.batches[split] = spec.batches(split, _with_answer_places(windows), labels)
        self.dev = ("dev",)
        self.test = ("test",) if "test" in self.batches else ()
        self.left_out = {split: found.left_out for split, found in self.questions.items()}

    def score(self, split: str, predictions: Float[np.ndarray, "n S"]) -> dict[str, float]:
        """Returns exact match and F1 as fractions; for SQuAD 2.0 with the best threshold of dev."""
        questions = self.questions[split]
        if not questions.labelled:
            return {}
        found = self.found_answers(split, predictions)
        references = questions.references()
        if not self._fields["unanswerable"]:
            scores = metrics_answers.score_squad_v1(found.predictions(), references)
            named = {name: scores[name] / 100 for name in ("exact_match", "f1")}
            return named | _character_f1(found.predictions(), references)
        rules = metrics_answers.score_squad_v2
        if split == "dev" and self._fields["null_threshold"] is None:
            self._threshold = _best_threshold(found, references)
        texts = found.predictions(self._threshold)
        scores = rules(texts, references)
        kinds = [name for name in scores if name.endswith(("exact", "f1"))]
        named = {name: scores[name] / 100 for name in kinds} | _character_f1(texts, references)
        return named | {"null_threshold": self._threshold}

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: F1 on the dev split; for Chinese the character F1."""
        return {"dev/score": values.get("dev/character_f1", values["dev/f1"])}

    def write(
        self, split: str, predictions: Float[np.ndarray, "n S"], folder: pathlib.Path
    ) -> None:
        """Writes the official prediction files; see `tasks/squad/answers.py`."""
        squad_answers.write(folder / split, self.found_answers(split, predictions), self._threshold)

    def found_answers(
        self, split: str, predictions: Float[np.ndarray, "n S"]
    ) -> squad_answers.PredictedAnswers:
        """Returns the answers to the questions of a split."""
        return _find_answers(self.questions[split], self.windows[split], predictions, self._fields)


OUTPUT = "predict"
"""The method of `tasks/squad/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return ("question", "context")


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: question, tab, context per line; or a JSON object with these keys.

    Answers have both, `answer`, `n_best` (the best candidates), for SQuAD 2.0 `null_odds`, and
    `"truncated": true` where the question exceeded `max_query_length`.

    Raises:
      UserError: a line has another number of fields, or other keys.
    """
    rows = [dataset.parse_fields(line, input_fields(task)) for line in lines]
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

    def answers(predictions: Float[np.ndarray, "n S"]) -> list[dict[str, Any]]:
        found = _find_answers(questions, windows, predictions, fields)
        texts = found.predictions(fields["null_threshold"] or 0.0).values()
        best = [[candidate._asdict() for candidate in each[:_MAX_SHOWN]] for each in found.n_best]
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

    return PredictionRequest(spec.batches("predict", _with_answer_places(windows), None), answers)


def check_reads_tokens(spec: EncodingSpec) -> None:
    """Raises `UserError` if the model reads characters, whose positions have no answers."""
    if spec.max_chars_per_word:
        raise UserError(
            "question answering requires a model that reads subword tokens: got one that reads "
            "characters; pass another run to --init"
        )


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


def _find_answers(
    questions: SquadQuestions,
    windows: squad_windows.AnswerWindows,
    predictions: Float[np.ndarray, "n S"],
    fields: Fields,
) -> squad_answers.PredictedAnswers:
    """Finds the answers from the array that `tasks/squad/head.py` predicts, 4 K + 1 columns."""
    starts, start_positions, ends, end_positions = np.split(predictions[:, :-1], 4, axis=1)
    return squad_answers.find(
        questions,
        windows,
        starts,
        start_positions.astype(np.int64),
        ends,
        end_positions.astype(np.int64),
        predictions[:, -1] if fields["unanswerable"] else None,
        n_best_size=starts.shape[1],
        max_answer_length=fields["max_answer_length"],
    )


def _best_threshold(
    found: squad_answers.PredictedAnswers, references: metrics_answers.Answers
) -> float:
    """Returns the null odds above which questions have no answer, for the highest F1.

    The official search returns 0 if it is best to answer no question, although odds may be below 0;
    then the threshold is below all odds.
    """
    odds, rules = found.odds(), metrics_answers.score_squad_v2
    best = rules(found.predictions(math.inf), references, odds)["best_f1_thresh"]
    none = math.nextafter(min(odds.values()), -math.inf)

    def f1(threshold: float) -> float:
        return rules(found.predictions(threshold), references)["f1"]

    return none if best == 0.0 and f1(none) > f1(best) else best


def _character_f1(
    predictions: Mapping[str, str], references: metrics_answers.Answers
) -> dict[str, float]:
    """Returns the character F1 of answers in Chinese, which has no spaces; else nothing."""
    if not metrics_answers.is_mostly_chinese(references):
        return {}
    return {"character_f1": metrics_answers.character_f1(predictions, references) / 100}


def _with_answer_places(windows: squad_windows.AnswerWindows) -> Pairs:
    """Adds the column `answer_places`: 1 for tokens of the context, 2 for [CLS], else 0."""
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
            f"{path}: got {questions.impossible.sum()} questions without an answer, the first is "
            f"{questions.ids[int(questions.impossible.argmax())]!r}; this is SQuAD 2.0: use "
            "configs/squad.py:squad2"
        )
    return questions
