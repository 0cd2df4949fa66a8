"""Dataset of a cross-lingual benchmark: examples of several languages, scored by language."""

import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from bertjax.constraints import Name, NotEmpty
from bertjax.errors import UserError
from bertjax.metrics.sequences import SINGLE_LABEL
from bertjax.tasks import dataset
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.multilingual import files
from bertjax.tasks.multilingual import predictions as files_of_predictions
from bertjax.tasks.multilingual.table import multilingual_task
from bertjax.tasks.sequence.predictions import prediction_request

Fields = Mapping[str, Any]


class DataFields(dataset.DataFields):
    """The fields of `config.data`.

    Attributes:
      train_languages: Languages of the training examples: one for zero-shot transfer, or several.
      eval_languages: Languages of dev and test; empty for all that the files have.
      train_file: Name of the train file, relative to the data; `{language}` stands for a language.
      dev_file: Likewise for dev.
      test_file: Likewise for test, which may be missing.
    """

    train_languages: Annotated[tuple[Name, ...], NotEmpty()]
    eval_languages: tuple[Name, ...]
    train_file: Name
    dev_file: Name
    test_file: Name


class Dataset:
    """Cross-lingual dataset; see `interfaces.Dataset`. Predictions are logits of the classes."""

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits.

        Args:
          data: The folder of the files.
          task: `config.task`.
          fields: `config.data`; see `DataFields`.
          spec: The encoding: tokenizer, lengths and batch sizes.

        Raises:
          UserError: a language or a required file is missing, or a line is malformed.
        """
        own = multilingual_task(task["dataset"])
        self.name, self.train_languages = own.name, tuple(fields["train_languages"])
        _check_train_languages(self.train_languages, fields["train_file"])
        self.splits, self.labels = files.read(data, own, fields)
        self.batches = {}
        for split, some in self.splits.items():
            examples = spec.subsample(split, some).examples
            encoded = spec.encode(examples.texts)
            self.batches[split] = spec.batches(split, encoded, examples.labels)
        self.dev = ("dev",)
        self.test = ("test",) if "test" in self.splits else ()
        self.left_out = {split: some.examples.left_out for split, some in self.splits.items()}
        self.task_fields = MappingProxyType({"labels": self.labels, "texts": own.texts})

    def score(self, split: str, predictions: Float[np.ndarray, "n C"]) -> dict[str, float]:
        """Returns `LANGUAGE_accuracy` for each language, and their mean, `accuracy`."""
        some = self.splits[split]
        return files_of_predictions.score(
            some.languages, predictions.argmax(axis=-1), some.examples.labels
        )

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: the mean accuracy on dev of the training languages.

        So that no labelled example of another language has an influence on the choice of an epoch;
        if dev has no training language, it is the mean over all languages.
        """
        names = [f"dev/{language}_accuracy" for language in self.train_languages]
        found = [values[name] for name in names if name in values] or [values["dev/accuracy"]]
        return {"dev/score": float(np.mean(found))}

    def write(
        self, split: str, predictions: Float[np.ndarray, "n C"], folder: pathlib.Path
    ) -> None:
        """Writes `SPLIT.tsv`: language, number of the example in its language, and class."""
        some, chosen = self.splits[split], predictions.argmax(axis=-1).tolist()
        classes = [self.labels[c] for c in chosen]
        files_of_predictions.write(
            folder / f"{split}.tsv", some.languages, some.examples.indices, classes
        )


def _check_train_languages(languages: tuple[str, ...], pattern: str) -> None:
    if len(languages) > 1 and files.LANGUAGE not in pattern:
        raise UserError(
            f"config.data.train_languages: got {', '.join(languages)}, expected one language, as "
            f"config.data.train_file={pattern} is one file; put {files.LANGUAGE} into its name"
        )


OUTPUT = "predict"
"""The method of `tasks/multilingual/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return tuple(task["texts"])


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: one example per line, tab-separated texts or a JSON object.

    Answers have the texts, `label` and `probabilities`.

    Raises:
      UserError: a line has another number of fields, or other keys.
    """
    names = input_fields(task)
    given = [dataset.parse_fields(line, names) for line in lines]
    texts = tuple([row[name] for row in given] for name in names)
    return prediction_request(given, spec.encode(texts), SINGLE_LABEL, task["labels"], spec)
