"""Dataset of a SuperGLUE task: one sequence per example, answer or candidate entity."""

import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.metrics.sequences import SINGLE_LABEL
from bertjax.tasks import dataset, sequences
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.sequence.predictions import prediction_request
from bertjax.tasks.superglue import files
from bertjax.tasks.superglue.records import Examples
from bertjax.tasks.superglue.table import SuperGlueTask, superglue_task

Fields = Mapping[str, Any]

DataFields = dataset.DataFields


class Dataset:
    """SuperGLUE dataset; see `interfaces.Dataset`. Predictions are logits of the classes."""

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits.

        Args:
          data: The folder with `BoolQ/`, `CB/` ... of the released archive.
          task: `config.task`.
          fields: `config.data`.
          spec: The encoding: tokenizer, lengths and batch sizes.

        Raises:
          UserError: a required split is missing, or a file is malformed.
        """
        self.task = superglue_task(task["dataset"])
        self.name = self.task.name
        self.examples = files.read(data, self.task)
        self.batches = {}
        for split, examples in self.examples.items():
            sampled = spec.subsample(split, examples)
            encoded = self.encode(sampled, self.task, spec)
            self.batches[split] = spec.batches(split, encoded, sampled.labels)
        self.dev = ("dev",)
        self.test = tuple(split for split in self.examples if split not in ("train", "dev"))
        self.left_out = dict.fromkeys(self.examples, ())
        self.task_fields = MappingProxyType({"labels": self.task.labels, "texts": self.task.texts})

    @staticmethod
    def encode(examples: Examples, task: SuperGlueTask, spec: EncodingSpec) -> sequences.Pairs:
        """Encodes the texts of each row as one sequence."""
        return spec.encode(examples.texts, task.truncate)

    def score(self, split: str, predictions: Float[np.ndarray, "n C"]) -> dict[str, float]:
        """Returns the official metrics, as fractions; none for an unlabelled split."""
        rows, answers = self.examples[split].rows, self.task.split(split).answers
        if rows[0].label is None:
            return {}
        return answers.score(rows, answers.choose(rows, predictions))

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: the mean of the task's metrics on the dev split."""
        named = [values[f"dev/{metric}"] for metric in self.task.metrics]
        return {"dev/score": float(np.mean(named))}

    def write(
        self, split: str, predictions: Float[np.ndarray, "n C"], folder: pathlib.Path
    ) -> None:
        """Writes the file of the evaluation server, such as `test/BoolQ.jsonl`."""
        own = self.task.split(split)
        path = folder / ("dev" if split == "dev" else "test") / f"{own.server}.jsonl"
        chosen = own.answers.choose(self.examples[split].rows, predictions)
        files.write_predictions(path, own.answers, chosen)


OUTPUT = "predict"
"""The method of `tasks/superglue/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return superglue_task(task["dataset"]).texts


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: one pair of texts per line, separated by a tab, or a JSON object.

    The texts of MultiRC are a paragraph and a question with one answer, those of ReCoRD a passage
    and a query with an entity in it. Answers have the texts, `label` and `probabilities`.

    Raises:
      UserError: a line has another number of fields, or other keys.
    """
    own = superglue_task(task["dataset"])
    names = input_fields(task)
    given = [dataset.parse_fields(line, names) for line in lines]
    texts = tuple([row[name] for row in given] for name in names)
    encoded = spec.encode(texts, own.truncate)
    return prediction_request(given, encoded, SINGLE_LABEL, own.labels, spec)
