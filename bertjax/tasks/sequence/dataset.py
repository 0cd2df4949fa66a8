"""Dataset of a table with one or two texts and a label per row."""

import pathlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Num

from bertjax.constraints import AnyText, OpenShare, Seed
from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.metrics.sequences import DEFAULTS, METRICS, MULTI_LABEL, REGRESSION, SINGLE_LABEL
from bertjax.tasks import dataset, tables
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.sequence import files, labels
from bertjax.tasks.sequence.examples import (
    SequenceExamples,
    check_counts,
    check_unused,
    choose_held_out,
)
from bertjax.tasks.sequence.predictions import prediction_request, write_report

Fields = Mapping[str, Any]

_WIDTH = 100
_SHARE = 0.1
"""Share of the dev split if the config leaves it open."""
_NO_SCORE = ", or set --config.task.problem_type=single_label_classification"
"""Advice in messages if the label of a regression is not a number."""


class DataFields(dataset.DataFields):
    """The fields of `config.data`.

    Attributes:
      text: Column of the text; "" for one with a common name.
      text_pair: Column of the second text; "" for none.
      label: Column of the label; "" for one with a common name.
      label_separator: Text between the labels of a cell, for several labels per example; "" for
        one label per cell.
      validation_fraction: Share of the training examples that becomes the dev split, of each class
        the same, if there is no dev file; None for 0.1.
      split_seed: Seed of that choice; None for 0.
    """

    text: AnyText
    text_pair: AnyText
    label: AnyText
    label_separator: AnyText
    validation_fraction: OpenShare | None
    split_seed: Seed | None


class Dataset:
    """Dataset of the rows of a table; see `interfaces.Dataset`. One sequence per row.

    Attributes:
      findings: Lines that describe the columns and labels that were found.
    """

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits; see `interfaces.Dataset` for the arguments.

        Raises:
          UserError: a file, column or label is missing or invalid, or does not fit the config.
        """
        self.name = pathlib.Path(data).resolve().name.partition(".")[0] or "table"
        given = tables.read_splits(data)
        self.columns = files.choose_columns(given["train"], fields)
        self._choose_labels(given["train"], task, fields)
        read = {name: self._examples(name, table, fields) for name, table in given.items()}
        held_out = ""
        if "dev" not in read:
            read |= self._split(read["train"], fields)
            held_out = self._describe_split(read, fields)
        else:
            check_unused(data, fields)
        self.examples = {name: read[name] for name in files.SPLITS if name in read}
        self.batches, train = {}, read["train"]
        for name, examples in self.examples.items():
            sampled = spec.subsample(name, examples)
            train = sampled if name == "train" else train
            encoded = spec.encode(sampled.texts)
            self.batches[name] = spec.batches(name, encoded, sampled.labels)
        self.dev = ("dev",)
        self.test = ("test",) if "test" in self.examples else ()
        self.left_out = dict.fromkeys(self.examples, ())
        weights = ()
        if self.labels:
            weights = labels.loss_weights(train.labels, self.labels, task.get("class_weights", ()))
        self.task_fields = MappingProxyType(
            {
                "problem_type": self.problem_type,
                "labels": self.labels,
                "texts": self.columns.texts,
                "loss_weights": weights,
            }
        )
        self.findings = (*self._describe(train, weights), *filter(None, [held_out]))

    def _choose_labels(self, table: Table, task: Fields, fields: Fields) -> None:
        """Determines problem type, names of the classes and metrics, and checks them."""
        values = table.parse_column(self.columns.label, strict=True)
        separator = fields["label_separator"]
        kind = task.get("problem_type") or labels.find_problem_type(values, separator)
        if kind == SINGLE_LABEL and not task.get("problem_type"):
            labels.check_not_scores(values, table.locations)
        self.problem_type, self.labels = kind, ()
        if separator and kind != MULTI_LABEL:
            raise UserError(
                f"config.data.label_separator: got {separator!r} with "
                f"config.task.problem_type={kind}, expected {MULTI_LABEL}; leave one of them out"
            )
        if separator and any(isinstance(value, list) for value in values):
            raise UserError(
                f"config.data.label_separator: got {separator!r}, expected none, as the labels of "
                f"{self.columns.label!r} are lists; leave it out"
            )
        if kind == REGRESSION and task.get("class_weights"):
            raise UserError(
                f"config.task.class_weights: got {task['class_weights']}, expected none, as the "
                f"labels of {self.columns.label!r} are scores; leave it out"
            )
        if kind != REGRESSION:
            found = self._names(table, fields)
            self.labels = labels.class_names(found)
            if len(self.labels) < (1 if kind == MULTI_LABEL else 2):
                raise UserError(
                    f"{table.path}: column {self.columns.label!r} has the classes "
                    f"{', '.join(self.labels) or 'none'}, expected several; choose the column with "
                    "--label COLUMN"
                )
        self.metrics = tuple(task.get("eval_metrics", ())) or DEFAULTS[kind]
        check_metrics("config.task.eval_metrics", self.metrics, kind, len(self.labels))

    def _names(self, table: Table, fields: Fields) -> list[list[str]]:
        values = table.parse_column(self.columns.label, strict=True)
        separator = fields["label_separator"]
        return [
            labels.names_of(value, self.problem_type, separator, location)
            for value, location in zip(values, table.locations, strict=True)
        ]

    def _examples(self, name: str, table: Table, fields: Fields) -> SequenceExamples:
        """Converts the table of a split; a test split may have no labels."""
        texts, column = files.read_texts(table, self.columns), self.columns.label
        if not tables.is_labelled(table, column, name):
            found = None
        elif self.problem_type == REGRESSION:
            found = labels.to_scores(table.columns[column], table.locations, _NO_SCORE)
        else:
            names = self._names(table, fields)
            found = labels.to_array(names, self.labels, self.problem_type, table.locations)
        return SequenceExamples(texts, found, [str(row) for row in range(len(table.locations))])

    def _split(self, examples: SequenceExamples, fields: Fields) -> dict[str, SequenceExamples]:
        if len(examples) < 2:
            raise UserError(
                f"{self.name}: got {len(examples)} example, expected 2 or more to split dev from "
                "train"
            )
        if self.problem_type == SINGLE_LABEL:
            check_counts(examples.labels, self.labels)
        share, seed = fields["validation_fraction"] or _SHARE, fields["split_seed"] or 0
        chosen = choose_held_out(examples.labels, share, seed)
        return {
            "train": examples.take(np.flatnonzero(~chosen)),
            "dev": examples.take(np.flatnonzero(chosen)),
        }

    def _describe_split(self, read: Mapping[str, SequenceExamples], fields: Fields) -> str:
        share = len(read["dev"]) / (len(read["dev"]) + len(read["train"]))
        how = "" if self.problem_type == REGRESSION else ", about the same share of each class"
        return (
            f"no dev file: dev is {share:.1%} of the rows{how} (split_seed "
            f"{fields['split_seed'] or 0})"
        )

    def _describe(self, train: SequenceExamples, weights: tuple[float, ...]) -> list[str]:
        texts = " and ".join(map(repr, self.columns.texts))
        kind = f"{self.problem_type}, {len(self.labels)} classes" if self.labels else REGRESSION
        lines = [f"columns: text {texts}, label {self.columns.label!r} ({kind})"]
        counts = f"labels of train: {labels.describe(train.labels, self.labels)}"
        lines += textwrap.wrap(counts, _WIDTH, subsequent_indent="  ", break_long_words=False)
        if weights:
            lines.append(f"class weights: from {min(weights):.4g} to {max(weights):.4g}")
        return lines

    def score(self, split: str, predictions: Num[np.ndarray, "n C"]) -> dict[str, float]:
        """Returns the chosen metrics; none for an unlabelled split."""
        references = self.examples[split].labels
        if references is None:
            return {}
        return compute_metrics(self.metrics, self.problem_type, predictions, references)

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: the first metric, negative for an error."""
        first = self.metrics[0]
        sign = -1.0 if METRICS[first].is_error else 1.0
        return {"dev/score": sign * values[f"dev/{first}"]}

    def write(self, split: str, predictions: Num[np.ndarray, "n C"], folder: pathlib.Path) -> None:
        """Writes predictions, the table of the classes and the confusion matrix."""
        write_report(
            folder,
            split,
            examples=self.examples[split],
            texts=self.columns.texts,
            logits=predictions,
            problem_type=self.problem_type,
            labels=self.labels,
        )


def check_metrics(option: str, names: Sequence[str], problem_type: str, num_labels: int) -> None:
    """Checks that metrics are defined for a problem type and number of classes.

    Raises:
      UserError: a metric is unknown or not defined; names the option that it is from.
    """
    known = [
        name
        for name, metric in METRICS.items()
        if problem_type in metric.problem_types and metric.num_labels in (0, num_labels)
    ]
    for name in names:
        if name not in known:
            raise UserError(
                f"{option}: got {name!r} for {num_labels} classes ({problem_type}), expected some "
                f"of {', '.join(known)}"
            )


def compute_metrics(
    names: Sequence[str],
    problem_type: str,
    outputs: Num[np.ndarray, "n C"],
    references: Num[np.ndarray, "n *more"],
) -> dict[str, float]:
    """Computes metrics by name.

    Args:
      names: Names of `metrics/sequences.py`.
      problem_type: One of `metrics.sequences.PROBLEM_TYPES`.
      outputs: Logits of the classes, or one score.
      references: Labels, as in `SequenceExamples`.
    """
    if problem_type == REGRESSION:
        outputs = outputs[:, 0]
    if problem_type == MULTI_LABEL:
        references = references > 0
    return {name: METRICS[name].compute(outputs, references) for name in names}


OUTPUT = "predict"
"""The method of `tasks/sequence/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return tuple(task["texts"])


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: one example per line, tab-separated texts or a JSON object.

    The keys of an object are the names of the columns; answers are those of
    `predictions.to_answers`.

    Raises:
      UserError: a line has another number of fields, or other keys.
    """
    names = input_fields(task)
    rows = [dataset.parse_fields(line, names) for line in lines]
    texts = tuple([given[name] for given in rows] for name in names)
    kind, labels = task["problem_type"], task["labels"]
    return prediction_request(rows, spec.encode(texts), kind, labels, spec)
