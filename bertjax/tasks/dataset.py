"""What the datasets of all tasks share: fields of `config.data`, encoding, inputs of prediction.

Inputs of prediction are lines with tabs between the fields, or JSON objects.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from jaxtyping import Num

from bertjax.constraints import AnyText, PositiveInt
from bertjax.errors import UserError
from bertjax.tasks.batches import PairBatches
from bertjax.tasks.sequences import Pairs

Line = tuple[str, str]
"""Where a line stands, and the line."""

_SHOWN = 60


def fields(line: Line, names: Sequence[str]) -> dict[str, str]:
    """The texts of a line, by name.

    Raises:
      UserError: it has others, or not as many.
    """
    where, text = line
    if text.lstrip().startswith("{"):
        found = json_object(line, dict.fromkeys(names, "a text"))
        if all(isinstance(found[name], str) for name in names):
            return {name: found[name] for name in names}
        raise UserError(f"{where}: expected a text for each of {', '.join(names)}: fix the line")
    parts = text.split("\t")
    if len(parts) != len(names):
        example = json.dumps(dict.fromkeys(names, "..."))
        raise UserError(
            f"{where}: {len(parts)} field(s), expected {len(names)} with tabs between them "
            f"({', '.join(names)}), or {example}"
        )
    return dict(zip(names, parts, strict=True))


def json_object(line: Line, wanted: dict[str, str]) -> dict:
    """A JSON object with the expected keys, of which the values tell what they hold.

    Raises:
      UserError: it is none, or lacks one.
    """
    where, text = line
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not wanted.keys() <= found.keys():
        keys = ", ".join(f'"{name}" ({what})' for name, what in wanted.items())
        raise UserError(
            f"{where}: expected a JSON object with {keys}, got {text[:_SHOWN]!r}: fix the line"
        )
    return found


class DataFields:
    """`config.data` of any fine-tuning; `tasks/NAME/dataset.py` adds those of its task.

    Attributes:
      max_seq_length: Tokens of the longest sequence.
      batch_size: Sequences of a training step.
      microbatches: Parts in which a step takes these.
      eval_batch_size: Sequences at a time where nothing is trained.
      padded_lengths: Shorter lengths to which batches of short sequences are padded.
      batches_per_group: Batches among which sequences are sorted by length; 1: none are.
      fingerprint: Of the data; the run writes it.
    """

    max_seq_length: PositiveInt
    batch_size: PositiveInt
    microbatches: PositiveInt
    eval_batch_size: PositiveInt
    padded_lengths: tuple[PositiveInt, ...]
    batches_per_group: PositiveInt
    fingerprint: AnyText


class Examples(Protocol):
    """A split, before it is tokens."""

    def __len__(self) -> int: ...

    def sample(self, size: int, seed: int) -> "Examples": ...


@dataclasses.dataclass(frozen=True)
class PredictionRequest:
    """Examples that the user gives, of which nobody knows the answers.

    Attributes:
      batches: What the model reads.
      answers: From its predictions, one of each sequence, to what is said of every example.
    """

    batches: PairBatches
    answers: Callable[[np.ndarray], list[dict[str, Any]]]


AnyExamples = TypeVar("AnyExamples", bound=Examples)


@dataclasses.dataclass(frozen=True)
class EncodingSpec:
    """What a recipe and a model say of sequences and batches.

    Attributes:
      tokenizer: An `interfaces.Tokenizer`.
      max_seq_length: L, special tokens included.
      cls_last: Whether [CLS] ends a sequence.
      max_chars_per_word: Characters of each word, for models that read these; else 0.
      takes_positions: Whether the model can be told where tokens stand.
      batch_size: Sequences of a training batch.
      eval_batch_size: Sequences of a batch that is evaluated.
      padded_lengths: Lengths of batches that are shorter than `max_seq_length`.
      batches_per_group: Batches among which sequences are sorted by length.
      max_train_examples: So many, drawn with `seed`, are trained on; 0 for all.
      seed: Of the draw and of the shuffles.
    """

    tokenizer: Any
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

    def drawn(self, split: str, examples: AnyExamples) -> AnyExamples:
        """What is read of a split."""
        if split != "train" or not self.max_train_examples:
            return examples
        return examples.sample(self.max_train_examples, self.seed)

    def batches(
        self,
        split: str,
        sequences: Pairs,
        labels: Num[np.ndarray, "n *more"] | None,
        together: int = 1,
    ) -> PairBatches:
        """The batches of a split, of training or of evaluation.

        Args:
          split: Its name.
          sequences: Encoded.
          labels: One for each sequence, or None.
          together: Sequences that follow each other and are never parted.
        """
        shorter = [length for length in self.padded_lengths if length < self.max_seq_length]
        return PairBatches(
            pairs=sequences,
            labels=labels,
            batch_size=self.batch_size if split == "train" else self.eval_batch_size,
            padded_lengths=(*shorter, self.max_seq_length),
            batches_per_group=self.batches_per_group,
            seed=self.seed,
            together=together,
        )
