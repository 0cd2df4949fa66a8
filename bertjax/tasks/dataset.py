"""Shared parts of all task datasets: `config.data`, its files, encoding, prediction inputs.

Prediction inputs are one example per line: tab-separated fields, or a JSON object.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from jaxtyping import Num

from bertjax.constraints import AnyText, NonNegativeInt, PositiveInt
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.tasks import sequences as tasks_sequences
from bertjax.tasks.batches import PairBatches
from bertjax.tasks.sequences import Pairs

Line = tuple[str, str]
"""(location of the line as `FILE:NUMBER`, text of the line)."""

_MAX_SHOWN = 60
"""Characters of a malformed line that an error message quotes."""


def parse_fields(line: Line, names: Sequence[str]) -> dict[str, str]:
    """Parses a line into its texts, by field name.

    Args:
      line: Tab-separated texts in the order of `names`, or a JSON object.
      names: The names of the fields.

    Raises:
      UserError: the number of fields or a key of the object does not match.
    """
    where, text = line
    if text.lstrip().startswith("{"):
        found = parse_json_object(line, dict.fromkeys(names, "a string"))
        if all(isinstance(found[name], str) for name in names):
            return {name: found[name] for name in names}
        raise UserError(f"{where}: expected a string for each of {', '.join(names)}; fix the line")
    parts = text.split("\t")
    if len(parts) != len(names):
        example = json.dumps(dict.fromkeys(names, "..."))
        raise UserError(
            f"{where}: got {len(parts)} field(s), expected {len(names)} separated by tabs "
            f"({', '.join(names)}), or {example}"
        )
    return dict(zip(names, parts, strict=True))


def parse_json_object(line: Line, expected: dict[str, str]) -> dict:
    """Parses a line as a JSON object with at least the expected keys.

    Args:
      line: The line.
      expected: For each key a description of its value, for the error message.

    Raises:
      UserError: the line is not a JSON object, or a key is missing.
    """
    where, text = line
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not expected.keys() <= found.keys():
        keys = ", ".join(f'"{name}" ({kind})' for name, kind in expected.items())
        given = f"the keys {', '.join(found)}" if found and isinstance(found, dict) else ""
        raise UserError(
            f"{where}: got {given or repr(text[:_MAX_SHOWN])}, expected a JSON object with {keys}; "
            "fix the line"
        )
    return found


class DataFields:
    """The fields of `config.data` that every task has; `tasks/NAME/dataset.py` adds its own.

    Attributes:
      max_seq_length: Maximum length of a sequence in tokens, special tokens included.
      batch_size: Sequences per training step.
      microbatches: Number of gradient accumulation steps per training step.
      eval_batch_size: Sequences per evaluation batch.
      padded_lengths: Further, shorter lengths in tokens to which batches may be padded.
      batches_per_group: Number of batches within which sequences are sorted by length; 1 sorts
        none.
      packed_examples: Number of consecutive examples of a training batch whose tokens share rows,
        a multiple of 8, instead of rows of padding; 0 gives each example a row.
      fingerprint: Fingerprint of the data; written by the run.
    """

    max_seq_length: PositiveInt
    batch_size: PositiveInt
    microbatches: PositiveInt
    eval_batch_size: PositiveInt
    padded_lengths: tuple[PositiveInt, ...]
    batches_per_group: PositiveInt
    packed_examples: NonNegativeInt = 0
    fingerprint: AnyText


class Examples(Protocol):
    """The examples of a split, before tokenization."""

    def __len__(self) -> int: ...

    def sample(self, size: int, seed: int) -> "Examples": ...


@dataclasses.dataclass(frozen=True)
class PredictionRequest:
    """Unlabelled examples given by the user, encoded for prediction.

    Attributes:
      batches: The encoded examples.
      answers: Converts predictions, one per sequence, to one JSON object per example.
    """

    batches: PairBatches
    answers: Callable[[np.ndarray], list[dict[str, Any]]]


def with_inputs(
    rows: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]], sequences: Pairs
) -> list[dict[str, Any]]:
    """Returns each input with its answer, and `"truncated": true` where it was too long."""
    return [
        {**given, **answer, **({"truncated": True} if cut else {})}
        for given, answer, cut in zip(rows, answers, sequences.truncated, strict=True)
    ]


AnyExamples = TypeVar("AnyExamples", bound=Examples)


@dataclasses.dataclass(frozen=True)
class EncodingSpec:
    """How examples are encoded and batched: tokenizer, lengths and batch sizes.

    Attributes:
      tokenizer: An `interfaces.Tokenizer`.
      max_seq_length: L, special tokens included.
      cls_last: Whether [CLS] is the last token of a sequence (XLNet) instead of the first.
      max_chars_per_word: W for models that read characters; 0 for models that read tokens.
      takes_positions: Whether the model adds embeddings of `position_ids`.
      batch_size: Sequences per training batch.
      eval_batch_size: Sequences per evaluation batch.
      padded_lengths: Allowed batch lengths in addition to `max_seq_length`.
      batches_per_group: Number of batches within which sequences are sorted by length.
      max_train_examples: Size of a random subset of the training split; 0 uses all of it.
      seed: Seed of the subset and of the shuffles.
      packed_examples: Number of consecutive training examples that share rows; 0 for none.
    """

    tokenizer: Tokenizer
    max_seq_length: int
    cls_last: bool
    max_chars_per_word: int
    takes_positions: bool
    batch_size: int
    eval_batch_size: int
    padded_lengths: tuple[int, ...]
    batches_per_group: int
    max_train_examples: int
    seed: int
    packed_examples: int = 0

    def subsample(self, split: str, examples: AnyExamples) -> AnyExamples:
        """Returns `max_train_examples` random examples of the training split, or all of another."""
        if split != "train" or not self.max_train_examples:
            return examples
        return examples.sample(self.max_train_examples, self.seed)

    def encode(self, texts: Sequence[list[str]], truncate: str = "longer") -> Pairs:
        """Encodes one or two texts per example; see `sequences.encode`."""
        return tasks_sequences.encode(
            texts,
            self.tokenizer,
            self.max_seq_length,
            cls_last=self.cls_last,
            max_chars_per_word=self.max_chars_per_word,
            truncate=truncate,
        )

    def batches(
        self,
        split: str,
        sequences: Pairs,
        labels: Num[np.ndarray, "n *more"] | None,
        group_size: int = 1,
    ) -> PairBatches:
        """Returns the batches of a split; those of `train` have the training batch size.

        Args:
          split: The name of the split.
          sequences: The encoded examples.
          labels: One label per sequence, or None.
          group_size: Number of consecutive sequences that stay in one batch.
        """
        shorter = [length for length in self.padded_lengths if length < self.max_seq_length]
        return PairBatches(
            pairs=sequences,
            labels=labels,
            batch_size=self.batch_size if split == "train" else self.eval_batch_size,
            padded_lengths=(*shorter, self.max_seq_length),
            batches_per_group=self.batches_per_group,
            seed=self.seed,
            group_size=group_size,
            packed_examples=self.packed_examples if split == "train" else 0,
        )


def find_files(
    folder: str, usual: Mapping[str, Sequence[str]], fields: Mapping[str, Any]
) -> dict[str, pathlib.Path]:
    """Finds the file of each split; the test split is optional.

    Args:
      folder: The folder of the files.
      usual: Default file names of each split, in order of preference.
      fields: `config.data` with `train_file`, `dev_file` and `test_file`; "" for the usual names.

    Raises:
      UserError: the train or dev file, or a file that the config names, is missing.
    """
    found = {}
    for split, names in usual.items():
        named = fields[f"{split}_file"]
        names = (named,) if named else names
        paths = (pathlib.Path(folder) / name for name in names)
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            found[split] = path
        elif named or split != "test":
            raise UserError(
                f"no {' or '.join(names)} in {folder}: --data expects the folder of the task's "
                f"files; set --config.data.{split}_file=FILE for another name"
            )
    return found
