"""Dataset of a table of multiple-choice questions."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from bertjax.constraints import AnyText, OpenShare, Seed
from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.io.files import write_output
from bertjax.tasks import dataset, tables
from bertjax.tasks.choices import rows as choice_rows
from bertjax.tasks.choices.rows import Questions
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.multiple_choice import dataset as choice_dataset

Fields = Mapping[str, Any]

TEMPLATE = "race"
"""The data set whose sequences these are: a "_" of the question is replaced by the choice."""

QUESTION_COLUMNS = ("question", "query", "prompt", "text")
CHOICE_COLUMNS = ("choices", "options", "endings", "answers")
LABEL_COLUMNS = ("label", "answer", "answerkey", "answer_key", "correct", "target")
"""Common names of columns, compared without regard to case; the first that exists is chosen."""


class DataFields(dataset.DataFields):
    """The fields of `config.data`. Batch sizes are counted in questions.

    Attributes:
      text: Column of the question; "" for one with a common name.
      text_pair: Column of the context; "" for none.
      choices: A column of lists, or a column for each choice; none for one with a common name.
      label: Column of the right choice; "" for one with a common name.
      validation_fraction: Share of the training examples that becomes the dev split, if there is no
        dev file; None for 0.1.
      split_seed: Seed of that choice; None for 0.
    """

    text: AnyText
    text_pair: AnyText
    choices: tuple[AnyText, ...]
    label: AnyText
    validation_fraction: OpenShare | None
    split_seed: Seed | None


class Dataset(choice_dataset.Dataset):
    """Multiple choice of a table; see `interfaces.Dataset`. One sequence per question and choice.

    Attributes:
      findings: Lines that describe the columns that were found.
    """

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits; see `interfaces.Dataset` for the arguments.

        Raises:
          UserError: a file, column, choice or label is missing or invalid.
        """
        self.name = pathlib.Path(data).resolve().name.partition(".")[0] or "choices"
        found = tables.read_splits(data)
        train = found["train"]
        label = tables.choose_column(train, fields["label"], LABEL_COLUMNS, "label")
        question = tables.choose_column(train, fields["text"], QUESTION_COLUMNS, "text")
        self.columns = (question, *filter(None, [fields["text_pair"]]))
        options = fields["choices"] or (
            tables.choose_column(train, "", CHOICE_COLUMNS, "config.data.choices"),
        )
        # A small dev file may allow both readings.
        by_text = choice_rows.are_labels_texts(train, options, label)
        read = {
            name: self._read(name, table, options, label, by_text=by_text)
            for name, table in found.items()
        }
        sizes = [len(options) for own in read.values() for options in own.options]
        count = max(sizes)
        read = {name: own.padded(count) for name, own in read.items()}
        _, groups = np.unique(read["train"].contexts, return_inverse=True)
        self.choices, lines = tables.with_dev(
            data, read, fields, read["train"].answers, groups if fields["text_pair"] else None
        )
        spec = count_in_sequences(spec, count)
        self.batches = {
            name: choice_dataset.question_batches(name, spec.subsample(name, own), TEMPLATE, spec)
            for name, own in self.choices.items()
        }
        self.dev = ("dev",)
        self.test = ("test",) if "test" in self.choices else ()
        self.left_out = dict.fromkeys(self.batches, ())
        self.task_fields = MappingProxyType(
            {"dataset": TEMPLATE, "num_choices": count, "columns": self.columns}
        )
        described = ", ".join(map(repr, (*self.columns, *options)))
        shown = f"{count} choices" if min(sizes) == count else f"{min(sizes)} to {count} choices"
        self.findings = (f"columns: {described}, label {label!r} ({shown})", *lines)

    def _read(
        self, name: str, table: Table, options: tuple[str, ...], label: str, *, by_text: bool
    ) -> Questions:
        labelled = tables.is_labelled(table, label, name)
        label = label if labelled else ""
        return choice_rows.read(table, self.columns, options, label, by_text=by_text)

    def write(self, split: str, predictions: Float[np.ndarray, " n"], folder: pathlib.Path) -> None:
        """Writes `SPLIT.jsonl`: of every question the right and the predicted choice, as texts."""
        questions, lines = self.choices[split], []
        for number, chosen in enumerate(self.predicted_choices(split, predictions).tolist()):
            options = questions.options[number]
            row = {"row": number, "choices": list(filter(None, options))}
            if questions.answers is not None:
                row["true"] = options[questions.answers[number]]
            lines.append(json.dumps(row | {"answer": options[chosen]}, ensure_ascii=False))
        write_output(folder / f"{split}.jsonl", "\n".join(lines) + "\n")


def count_in_sequences(spec: EncodingSpec, num_choices: int) -> EncodingSpec:
    """Converts the batch sizes of an encoding from questions to sequences."""
    sizes = {name: getattr(spec, name) * num_choices for name in ("batch_size", "eval_batch_size")}
    return dataclasses.replace(spec, **sizes)


OUTPUT = "predict"
"""The method of `tasks/choices/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return (*task["columns"], "choices")


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: a JSON object per line with the columns and "choices".

    There are at most `num_choices` of them. Answers have these, `answer` (text of the choice) and
    `probabilities`.

    Raises:
      UserError: a line is not such an object.
    """
    columns, count = task["columns"], task["num_choices"]
    expected = f"a list of 2 to {count} strings" if count > 2 else "a list of 2 strings"
    keys = dict.fromkeys(columns, "a string") | {"choices": expected}
    rows, cells = [], []
    for line in lines:
        row = dataset.parse_json_object(line, keys)
        if not isinstance(row["choices"], list) or not 2 <= len(row["choices"]) <= count:
            raise UserError(f"{line[0]}: choices: expected {expected}; fix the line")
        rows.append({name: row[name] for name in keys})
        cells.append(line[0])
    table = Table("input", {name: [row[name] for row in rows] for name in keys}, cells)
    questions = choice_rows.read(table, columns, ("choices",), "").padded(count)
    encoded = choice_dataset.encode_choices(questions, TEMPLATE, spec)

    def answers(scores: Float[np.ndarray, " n"]) -> list[dict[str, Any]]:
        found = softmax(choice_dataset.choice_scores(questions, scores), axis=-1)
        answers = []
        for row, own in zip(rows, found, strict=True):
            own = own[: len(row["choices"])]
            best = row["choices"][int(own.argmax())]
            answers.append({**row, "answer": best, "probabilities": own.tolist()})
        return answers

    batches = count_in_sequences(spec, count).batches("predict", encoded, None, count)
    return PredictionRequest(batches, answers)
