"""Dataset of first letters: `train.tsv` and `dev.tsv` with the columns text and letter."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from bertjax.data.random import sample
from bertjax.errors import UserError
from bertjax.io.files import read_text
from bertjax.metrics import classification
from bertjax.tasks import dataset, sequences
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest

Fields = Mapping[str, Any]

DataFields = dataset.DataFields


@dataclasses.dataclass(frozen=True)
class FirstLetters:
    """The examples of a split."""

    texts: list[str]
    letters: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def sample(self, size: int, seed: int) -> "FirstLetters":
        """Returns `size` random examples, in file order."""
        kept = sample(len(self), size, seed)
        return FirstLetters([self.texts[i] for i in kept], [self.letters[i] for i in kept])


class Dataset:
    """See `interfaces.Dataset`. One sequence per text."""

    name = "first_letter"
    dev, test = ("dev",), ()

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes both splits.

        Args:
          data: Folder of the files.
          task: `config.task`.
          fields: `config.data`.
          spec: The encoding.
        """
        self.examples = {
            split: _read(pathlib.Path(data) / f"{split}.tsv") for split in ("train", "dev")
        }
        self.letters = tuple(sorted(set(self.examples["train"].letters)))
        self.task_fields = {"letters": self.letters}
        self.batches = {}
        for split, examples in self.examples.items():
            sampled = spec.subsample(split, examples)
            labels = np.array([self.letters.index(letter) for letter in sampled.letters], np.int32)
            self.batches[split] = spec.batches(split, _encode(sampled.texts, spec), labels)
        self.left_out = dict.fromkeys(self.batches, ())

    def score(self, split: str, predictions: Int[np.ndarray, " n"]) -> dict[str, float]:
        """Returns the accuracy."""
        found = np.array(self.letters)[predictions]
        return {"accuracy": classification.accuracy(found, np.array(self.examples[split].letters))}

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns the accuracy on the dev split as `dev/score`."""
        return {"dev/score": values["dev/accuracy"]}

    def write(self, split: str, predictions: Int[np.ndarray, " n"], folder: pathlib.Path) -> None:
        """Writes one letter per line."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = [self.letters[number] for number in predictions]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


OUTPUT = "predict"
"""The method of `head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return ("text",)


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs, one text per line; an answer has the text and its letter."""
    texts = [dataset.parse_fields(line, ("text",))["text"] for line in lines]

    def answers(predictions: Int[np.ndarray, " n"]) -> list[dict[str, Any]]:
        letters = [task["letters"][number] for number in predictions]
        return [
            {"text": text, "letter": letter} for text, letter in zip(texts, letters, strict=True)
        ]

    return PredictionRequest(spec.batches("predict", _encode(texts, spec), None), answers)


def _encode(texts: Sequence[str], spec: EncodingSpec) -> sequences.Pairs:
    return sequences.encode(
        [list(texts)],
        spec.tokenizer,
        spec.max_seq_length,
        cls_last=spec.cls_last,
        max_chars_per_word=spec.max_chars_per_word,
    )


def _read(path: pathlib.Path) -> FirstLetters:
    """Reads the file of a split.

    Raises:
      UserError: the file is missing, or a line does not have two columns.
    """
    if not path.is_file():
        raise UserError(f"no file {path}: --data expects the folder of train.tsv and dev.tsv")
    rows = [line.split("\t") for line in read_text(path).splitlines()]
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise UserError(f"{path}:{number}: got {len(row)} columns, expected text and letter")
    texts, letters = zip(*rows, strict=True)
    return FirstLetters(list(texts), list(letters))
