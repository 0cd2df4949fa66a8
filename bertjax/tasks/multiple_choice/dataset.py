"""Dataset of multiple-choice questions: RACE, SWAG and COPA.

Every option of every question is a sequence: option c of question i is row i * C + c.

RACE: [CLS] article [SEP] question and option [SEP]. SWAG: [CLS] sentence [SEP] start and ending
[SEP]. Both as in the published systems (Liu et al. 2019, section 5.3; Devlin et al. 2019, 4.4).
COPA: [CLS] premise [SEP] because or so, and alternative [SEP].
"""

import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from bertjax.errors import UserError, nearest
from bertjax.interfaces import Tokenizer
from bertjax.metrics import classification
from bertjax.tasks import dataset as tasks_dataset
from bertjax.tasks import sequences
from bertjax.tasks.batches import PairBatches
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.multiple_choice import copa
from bertjax.tasks.multiple_choice import files as multiple_choice_files
from bertjax.tasks.multiple_choice import predictions as multiple_choice_predictions
from bertjax.tasks.multiple_choice.files import Choices
from bertjax.tasks.sequences import Pairs

Fields = Mapping[str, Any]

READERS: Mapping[str, Callable[[str], dict[str, Choices]]] = dict(
    zip(
        multiple_choice_files.NAMES,
        (multiple_choice_files.read_race, multiple_choice_files.read_swag, copa.read),
        strict=True,
    )
)

_WRITERS = {"copa": copa.write}
"""Functions that write other prediction files than `SPLIT.json` with the letters of the options."""


DataFields = tasks_dataset.DataFields

_BLANK = re.compile("_+")


class Dataset:
    """Multiple-choice dataset; see `interfaces.Dataset`. One sequence per question and choice."""

    task_fields = MappingProxyType({})

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits.

        Args:
          data: Folder of the released files.
          task: `config.task`; `dataset` is "race", "swag" or "copa".
          fields: `config.data`.
          spec: The encoding: tokenizer, lengths and batch sizes.

        Raises:
          UserError: train or dev is missing, a file is malformed, or the number of choices differs.
        """
        self.name = task["dataset"]
        self.choices = READERS[self.name](data)
        self.batches = {}
        for split in ("train", "dev"):
            if split not in self.choices:
                raise UserError(
                    f"no {split} split of {self.name} in {data}: copy the released files there"
                )
        for split, choices in self.choices.items():
            sampled = spec.subsample(split, choices)
            if sampled.num_choices != task["num_choices"]:
                raise UserError(
                    f"{data}: questions have {sampled.num_choices} choices, expected "
                    f"{task['num_choices']}; set --config.task.num_choices={sampled.num_choices}"
                )
            self.batches[split] = question_batches(split, sampled, self.name, spec)
        self.dev = ("dev",)
        self.test = ("test",) if "test" in self.choices else ()
        self.left_out = dict.fromkeys(self.batches, ())

    def score(self, split: str, predictions: Float[np.ndarray, " n"]) -> dict[str, float]:
        """Returns the accuracy, for RACE also per level; none for an unlabelled split."""
        choices = self.choices[split]
        if choices.answers is None:
            return {}
        chosen, levels = self.predicted_choices(split, predictions), np.array(choices.levels)
        found = {"accuracy": classification.accuracy(chosen, choices.answers)}
        for level in sorted(set(choices.levels) - {""}):
            own = levels == level
            found[f"{level}_accuracy"] = classification.accuracy(chosen[own], choices.answers[own])
        return found

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: the accuracy on the dev split."""
        return {"dev/score": values["dev/accuracy"]}

    def write(self, split: str, predictions: Float[np.ndarray, " n"], folder: pathlib.Path) -> None:
        """Writes the predicted choice by question id, in the format of the data set."""
        chosen = self.predicted_choices(split, predictions).tolist()
        write = _WRITERS.get(self.name, multiple_choice_predictions.write_split)
        write(folder, split, self.choices[split].ids, chosen)

    def predicted_choices(
        self, split: str, predictions: Float[np.ndarray, " n"]
    ) -> Int[np.ndarray, " questions"]:
        """Returns the index of the best choice of every question of a split."""
        return choice_scores(self.choices[split], predictions).argmax(axis=1)


OUTPUT = "predict"
"""The method of `tasks/multiple_choice/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return ("context", "question", "choices")


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: a JSON object per line with "context", "question" and "choices".

    Answers have these, `answer` (index of the choice, from 0), `probabilities`, and
    `"truncated": true` where the context exceeded the maximum length.

    Raises:
      UserError: a line is not such an object.
    """
    rows = [_question(line, task["num_choices"]) for line in lines]
    choices = Choices(
        contexts=[row["context"] for row in rows],
        questions=[row["question"] for row in rows],
        options=[tuple(row["choices"]) for row in rows],
        answers=None,
        ids=[str(number) for number in range(len(rows))],
        levels=[""] * len(rows),
    )

    sequences = encode_choices(choices, task["dataset"], spec)

    def answers(scores: Float[np.ndarray, " n"]) -> list[dict[str, Any]]:
        probabilities = softmax(scores.reshape(len(rows), -1), axis=-1)
        truncated = sequences.truncated.reshape(len(rows), -1).any(axis=1)
        return [
            row
            | {"answer": int(own.argmax()), "probabilities": own.tolist()}
            | ({"truncated": True} if cut else {})
            for row, own, cut in zip(rows, probabilities, truncated, strict=True)
        ]

    return PredictionRequest(spec.batches("predict", sequences, None, task["num_choices"]), answers)


def _question(line: Line, num_choices: int) -> dict[str, Any]:
    keys = {"context": "a string", "question": "a string", "choices": f"{num_choices} strings"}
    row = tasks_dataset.parse_json_object(line, keys)
    choices = row["choices"] if isinstance(row["choices"], list) else []
    texts = [row["context"], row["question"], *choices]
    if len(choices) != num_choices or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{line[0]}: expected strings, and {num_choices} choices; fix the line")
    return {name: row[name] for name in keys}


def choice_scores(
    choices: Choices, predictions: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "questions C"]:
    """Returns the scores of the choices of every question, minus infinity for absent ones."""
    return np.where(choices.absent(), -np.inf, predictions.reshape(-1, choices.num_choices))


def _labels(choices: Choices) -> Int[np.ndarray, " n"] | None:
    """Returns 1 for the correct choice of each question, -1 for absent and 0 for other ones."""
    if choices.answers is None:
        return None
    correct = np.arange(choices.num_choices) == choices.answers[:, None]
    return np.where(choices.absent(), -1, correct).astype(np.int32).reshape(-1)


def question_batches(split: str, choices: Choices, dataset: str, spec: EncodingSpec) -> PairBatches:
    """Returns the batches of a split, in which the choices of a question stay together."""
    encoded = encode_choices(choices, dataset, spec)
    return spec.batches(split, encoded, _labels(choices), choices.num_choices)


def encode_choices(choices: Choices, dataset: str, spec: EncodingSpec) -> Pairs:
    """Encodes the questions of a data set, or of a table as one of it; see `encode`."""
    return encode(
        choices,
        spec.tokenizer,
        spec.max_seq_length,
        dataset=dataset,
        cls_last=spec.cls_last,
        max_chars_per_word=spec.max_chars_per_word,
    )


def with_option(question: str, option: str) -> str:
    """Puts an option of RACE into the blanks of its question, or after a question without any."""
    if _BLANK.search(question):
        return _BLANK.sub(lambda _: option, question)
    return f"{question} {option}"


def with_ending(start: str, ending: str) -> str:
    """Appends an ending of SWAG to the start of its sentence, or an alternative to "because"."""
    return f"{start} {ending}"


DATASETS: Mapping[str, tuple[Callable[[str, str], str], str]] = {
    "race": (with_option, "first"),
    "swag": (with_ending, "longer"),
    "copa": (with_ending, "longer"),
}
"""(function that joins question and option, truncation strategy of `sequences.TRUNCATIONS`).

RACE truncates the article only, since a question without its option cannot be answered.
"""


def encode(
    choices: Choices,
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    dataset: str,
    cls_last: bool = False,
    max_chars_per_word: int = 0,
) -> Pairs:
    """Tokenizes all options of all questions.

    Args:
      choices: The questions.
      tokenizer: An `interfaces.Tokenizer` with [CLS] and [SEP].
      max_seq_length: Maximum length in tokens; longer sequences are truncated.
      dataset: `race`, `swag` or `copa`.
      cls_last: Whether [CLS] is the last token of each sequence.
      max_chars_per_word: Characters per word for a `char_ids` column; 0 for no column.

    Raises:
      UserError: the data set is unknown, or `sequences.encode` raises.
    """
    if dataset not in DATASETS:
        raise UserError(
            f"unknown multiple-choice data set {dataset!r}: {nearest(dataset, DATASETS)}"
        )
    join, truncate = DATASETS[dataset]
    rows = list(zip(choices.contexts, choices.questions, choices.options, strict=True))
    contexts = [context for context, _, options in rows for _ in options]
    seconds = [join(question, option) for _, question, options in rows for option in options]
    return sequences.encode(
        (contexts, seconds),
        tokenizer,
        max_seq_length,
        cls_last=cls_last,
        max_chars_per_word=max_chars_per_word,
        truncate=truncate,
    )
