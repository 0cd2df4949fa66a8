"""Read tables of text pairs: columns of anchor, positive, hard negative and score of each split."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from bertjax.corpus.format import Table
from bertjax.data.random import sample
from bertjax.errors import UserError
from bertjax.tasks.sequence import files, labels

PAIR_COLUMNS = (
    ("anchor", "positive"),
    ("query", "positive"),
    ("query", "answer"),
    ("question", "answer"),
    ("query", "document"),
    ("query", "passage"),
    *files.PAIR_COLUMNS,
)
NEGATIVE_COLUMNS = ("negative", "hard_negative")
_NUMBERED = re.compile(r"negative_\d+")
SCORE_COLUMNS = ("score", "similarity_score", "similarity")
"""Common names of columns. A column `label` is a score only on request: it is often a class."""


@dataclasses.dataclass(frozen=True)
class PairLoss:
    """A loss of text pairs, and the form of its training examples.

    Attributes:
      name: `config.task.loss_type`.
      is_scored: Whether a pair has a score; else it is an anchor and its positive, with any number
        of hard negatives.
      unscored: A loss of the same task for pairs without scores, for messages.
    """

    name: str
    is_scored: bool
    unscored: str

    @property
    def remedy(self) -> str:
        """Advice in messages if there are no scores."""
        is_other = self.is_scored and self.name != self.unscored
        return f", or set --config.task.loss_type={self.unscored}" if is_other else ""


@dataclasses.dataclass(frozen=True)
class PairExamples:
    """The examples of a split, in file order.

    Attributes:
      texts: Anchors, positives and, where there are any, hard negatives; of unsupervised SimCSE
        (Gao et al. 2021, section 3) both are the same texts.
      scores: Similarity of each pair; None without scores.
      columns: Names of the columns of the texts.
    """

    texts: tuple[list[str], ...]
    scores: Float32[np.ndarray, " n"] | None
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts[0])

    def sample(self, size: int, seed: int) -> "PairExamples":
        """Returns `size` random examples, sampled without replacement, in file order."""
        return self.take(sample(len(self), size, seed))

    def take(self, kept: Int[np.ndarray, " m"]) -> "PairExamples":
        """Returns the examples with these numbers, in their order."""
        texts = tuple([column[i] for i in kept] for column in self.texts)
        scores = None if self.scores is None else self.scores[kept]
        return dataclasses.replace(self, texts=texts, scores=scores)

    @property
    def flat_texts(self) -> list[str]:
        """The texts of the first example, of the second, and so on."""
        return [text for row in zip(*self.texts, strict=True) for text in row]

    @property
    def text_ids(self) -> Int[np.ndarray, "n G"]:
        """The number of each text, equal for equal texts."""
        known = {text: number for number, text in enumerate(dict.fromkeys(self.flat_texts))}
        ids = np.array([known[text] for text in self.flat_texts], np.int32)
        return ids.reshape(len(self), -1)


def has_scores(
    table: Table, fields: Mapping[str, Any], names: Sequence[str] = SCORE_COLUMNS
) -> bool:
    """Whether a table has the column of scores of `config.data`, or one with a common name."""
    return fields["label"] in table.columns or bool(files.find_columns(table, names))


def read_train(table: Table, loss: PairLoss, fields: Mapping[str, Any]) -> PairExamples:
    """Reads the training examples.

    Raises:
      UserError: a column is missing or does not apply to the loss, a text is empty, or a score is
        not a number.
    """
    texts = files.choose_texts(table, fields, PAIR_COLUMNS)
    if not loss.is_scored:
        anchors = texts if len(texts) == 2 else texts * 2
        return _read(table, (*anchors, *_negatives(table, fields)), "", loss)
    if fields["negative"]:
        raise UserError(
            f"config.data.negative: got {fields['negative']!r} with config.task.loss_type="
            f"{loss.name}, expected none, since every pair has a score; leave it out{loss.remedy}"
        )
    if len(texts) < 2:
        raise UserError(
            f"{table.path}: got one column of text, {texts[0]!r}, of {', '.join(table.columns)}; "
            f"expected two for {loss.name}; choose the second with --text_pair COLUMN"
        )
    return _read(table, texts, _score(table, fields, required=True), loss)


def read_held_out(
    table: Table, train: PairExamples, loss: PairLoss, fields: Mapping[str, Any], *, is_test: bool
) -> PairExamples:
    """Reads a dev or test split: its columns are those of training, or found as there.

    It has scores if it has a column of scores, also if training has none.

    Args:
      table: Its examples.
      train: The training examples.
      loss: The loss of training.
      fields: `config.data`.
      is_test: Whether scores may be absent or hidden.

    Raises:
      UserError: a column is missing, a text is empty, or a score is not a number.
    """
    texts = tuple(dict.fromkeys(name for name in train.columns if name in table.columns))
    if len(set(train.columns)) < 2 or texts[:2] != train.columns[:2]:
        open_fields = {"text": "", "text_pair": "", "label": fields["label"]}
        texts = files.choose_texts(table, open_fields, PAIR_COLUMNS)
    if len(texts) < 2:
        raise UserError(
            f"{table.path}: got one column of text, {texts[0]!r}, of {', '.join(table.columns)}; "
            "expected pairs to evaluate embeddings, with or without a score; add a column"
        )
    score = _score(table, fields, required=loss.is_scored and not is_test)
    if is_test and score and labels.are_hidden(table.columns[score]):
        score = ""
    return _read(table, texts[:2] if score else texts, score, loss)


def _negatives(table: Table, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The column of the config; or one with a common name, or all of negative_1, negative_2 ..."""
    if not fields["negative"]:
        common = tuple(files.find_columns(table, NEGATIVE_COLUMNS)[:1])
        return common or tuple(name for name in table.columns if _NUMBERED.fullmatch(name.lower()))
    if fields["negative"] not in table.columns:
        raise UserError(
            f"config.data.negative: got {fields['negative']!r}, expected a column of {table.path}: "
            f"{', '.join(table.columns)}"
        )
    return (fields["negative"],)


def _score(table: Table, fields: Mapping[str, Any], *, required: bool) -> str:
    """The column of the scores; "" if there is none."""
    if fields["label"] in table.columns:
        return fields["label"]
    names = (*SCORE_COLUMNS, "label") if required else SCORE_COLUMNS
    found = [] if fields["label"] else files.find_columns(table, names)
    if required and not found:
        raise UserError(
            f"{table.path}: got the columns {', '.join(table.columns)}, expected one with scores; "
            "choose it with --label COLUMN"
        )
    return found[0] if found else ""


def _read(table: Table, columns: tuple[str, ...], score: str, loss: PairLoss) -> PairExamples:
    # One column at a time, since that of unsupervised SimCSE is read twice.
    texts = [files.read_texts(table, files.Columns((name,), ""))[0] for name in columns]
    values = table.columns[score] if score else []
    scores = labels.to_scores(values, table.locations, loss.remedy) if score else None
    return PairExamples(tuple(texts), scores, columns)
