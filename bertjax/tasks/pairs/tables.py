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
NEGATIVE_COLUMNS = ("negative", "hard_negative", "negatives")
SCORE_COLUMNS = ("score", "similarity_score", "similarity")
"""Common names of columns. A column `label` is a score only on request: it is often a class."""
TEACHER_COLUMNS = ("scores", "teacher_scores", "score", "label")


@dataclasses.dataclass(frozen=True)
class PairLoss:
    """A loss of text pairs, and the form of its training examples.

    Attributes:
      name: `config.task.loss_type`.
      is_scored: Whether a pair has a score; else it is an anchor and its positive, with any number
        of hard negatives.
      unscored: A loss of the same task for pairs without scores, for messages.
      is_distilled: Whether a teacher has scored the positive and each hard negative of a row.
      takes_margins: Whether its margin of the positive over the only negative may be given instead.
    """

    name: str
    is_scored: bool
    unscored: str
    is_distilled: bool = False
    takes_margins: bool = False

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
      teacher_scores: A teacher's scores of positive and hard negatives; None without.
    """

    texts: tuple[list[str], ...]
    scores: Float32[np.ndarray, " n"] | None
    columns: tuple[str, ...]
    teacher_scores: Float32[np.ndarray, "n C"] | None = None

    def __len__(self) -> int:
        return len(self.texts[0])

    def sample(self, size: int, seed: int) -> "PairExamples":
        """Returns `size` random examples, sampled without replacement, in file order."""
        return self.take(sample(len(self), size, seed))

    def take(self, kept: Int[np.ndarray, " m"]) -> "PairExamples":
        """Returns the examples with these numbers, in their order."""
        texts = tuple([column[i] for i in kept] for column in self.texts)
        arrays = {"scores": self.scores, "teacher_scores": self.teacher_scores}
        taken = {name: None if own is None else own[kept] for name, own in arrays.items()}
        return dataclasses.replace(self, texts=texts, **taken)

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


def check_choice(
    table: Table, fields: Mapping[str, Any], names: Sequence[str], choices: str
) -> None:
    """Raises `UserError` if a table has both scores and hard negatives.

    Args:
      table: The training examples.
      fields: `config.data`.
      names: Common names of columns of scores.
      choices: Advice in the message.
    """
    scores = [fields["label"]] if fields["label"] else files.find_columns(table, names)
    negatives = negative_columns(table, fields)
    if negatives and scores and scores[0] in table.columns:
        raise UserError(
            f"{table.path}: got scores ({scores[0]}) and hard negatives ({', '.join(negatives)}), "
            f"expected a choice of what is read; {choices}"
        )


def with_negative_lists(table: Table, fields: Mapping[str, Any]) -> Table:
    """Splits a column of lists of hard negatives to columns NAME_1, NAME_2 ...

    Raises:
      UserError: a cell is no list, or has another number of texts than the first.
    """
    name = fields["negative"] or next(iter(files.find_columns(table, ("negatives",))), "")
    is_list = not fields["negative"]
    cells = table.parse_column(name, strict=is_list) if name in table.columns else []
    if not cells or not isinstance(cells[0], list):
        return table
    count = len(cells[0])
    for cell, location in zip(cells, table.locations, strict=True):
        if not isinstance(cell, list) or len(cell) != count or not cell:
            got = f"{len(cell)} texts" if isinstance(cell, list) else repr(cell)
            raise UserError(
                f"{location}: {name}: got {got}, expected a list of {count or 'one or more'}, as "
                "many in every row"
            )
    columns = {key: values for key, values in table.columns.items() if key != name}
    numbered = {f"{name}_{n + 1}": [cell[n] for cell in cells] for n in range(count)}
    return dataclasses.replace(table, columns=columns | numbered)


def read_train(table: Table, loss: PairLoss, fields: Mapping[str, Any]) -> PairExamples:
    """Reads the training examples.

    Raises:
      UserError: a column is missing or does not apply to the loss, a text is empty, or a score is
        not a number.
    """
    texts = files.choose_texts(table, fields, PAIR_COLUMNS)
    negatives = negative_columns(table, fields)
    if loss.is_distilled:
        if len(texts) < 2 or not negatives:
            raise UserError(
                f"{table.path}: got the columns {', '.join(table.columns)}, expected an anchor, a "
                f"positive and hard negatives (negative, or negative_1, negative_2 ..., or a list "
                f"negatives) for {loss.name}; add them, or choose them with --text, --text_pair "
                "and --config.data.negative=COLUMN"
            )
        examples = _read(table, (*texts, *negatives), "", loss)
        return dataclasses.replace(
            examples, teacher_scores=_teacher_scores(table, loss, fields, len(negatives) + 1)
        )
    if not loss.is_scored:
        anchors = texts if len(texts) == 2 else texts * 2
        return _read(table, (*anchors, *negatives), "", loss)
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
    # Those of a row with negatives are a teacher's.
    is_ranked = loss.is_distilled and len(texts) > 2
    score = "" if is_ranked else _score(table, fields, required=loss.is_scored and not is_test)
    if is_test and score and labels.are_hidden(table.columns[score]):
        score = ""
    return _read(table, texts[:2] if score else texts, score, loss)


def negative_columns(table: Table, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The column of the config; or one with a common name, or all of negative_1, negative_2 ...

    Raises:
      UserError: there is no column of the config.
    """
    named = fields["negative"]
    if named in table.columns:
        return (named,)
    if not named and (common := files.find_columns(table, NEGATIVE_COLUMNS)):
        return (common[0],)
    numbered = re.compile(f"{re.escape(named)}_\\d+" if named else r"negatives?_\d+", re.IGNORECASE)
    found = tuple(name for name in table.columns if numbered.fullmatch(name))
    if named and not found:
        raise UserError(
            f"config.data.negative: got {named!r}, expected a column of {table.path}: "
            f"{', '.join(table.columns)}"
        )
    return found


def _teacher_scores(
    table: Table, loss: PairLoss, fields: Mapping[str, Any], count: int
) -> Float32[np.ndarray, "n C"]:
    """A teacher's scores of the positive and each negative of every row, `count` in all."""
    if fields["label"]:
        files.check_column(table, fields["label"], "label")
    found = [fields["label"]] if fields["label"] else files.find_columns(table, TEACHER_COLUMNS)
    if not found:
        raise UserError(
            f"{table.path}: got the columns {', '.join(table.columns)}, expected one with the "
            f"scores of a teacher for {loss.name}; choose it with --label COLUMN"
        )
    rows = []
    for cell, location in zip(table.parse_column(found[0]), table.locations, strict=True):
        numbers = cell if isinstance(cell, list) else [cell]
        if not isinstance(cell, list) and count == 2 and loss.takes_margins:
            numbers = [cell, 0]  # the margin, of which only the difference matters
        if len(numbers) != count:
            raise UserError(
                f"{location}: {found[0]}: got {len(numbers)} score(s), expected a list of {count}: "
                f"that of the positive and those of {count - 1} hard negative(s)"
            )
        rows.append(labels.to_scores(numbers, [location] * count))
    return np.stack(rows)


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
