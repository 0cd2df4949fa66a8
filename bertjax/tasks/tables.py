"""Read users' tables as task data: the table of each split, its columns, the dev split.

Shared by the kinds of tasks on tables. A kind is a folder whose dataset names its columns and
converts their cells; finding and reading files is `tasks/sequence/files.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from jaxtyping import Int, Num

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.tasks.sequence import files
from bertjax.tasks.sequence.examples import check_unused, choose_held_out
from bertjax.tasks.sequence.labels import are_hidden

DEV_SHARE = 0.1
"""Share of the dev split if the config leaves it open."""


class TableExamples(Protocol):
    """Examples of a split that can be divided."""

    def __len__(self) -> int: ...

    def take(self, kept: Int[np.ndarray, " m"]) -> "TableExamples": ...


AnyExamples = TypeVar("AnyExamples", bound=TableExamples)


def read_splits(data: str) -> dict[str, Table]:
    """Reads the table of each available split, train first; see `files.find_splits`.

    Raises:
      UserError: there is no training file, or a file is not a table.
    """
    found = files.find_splits(data)
    return {name: files.read_tables(found[name]) for name in files.SPLITS if name in found}


def choose_column(table: Table, named: str, common: Sequence[str], option: str) -> str:
    """Returns the column that the config names, or the first with a common name.

    Args:
      table: The training examples.
      named: Name of the column; "" for one with a common name.
      common: Common names.
      option: The option that names the column, without dashes.

    Raises:
      UserError: there is no such column; lists those of the table.
    """
    if named:
        files.check_column(table, named, option)
        return named
    found = files.find_columns(table, common)
    if not found:
        raise UserError(
            f"{table.path}: got the columns {', '.join(table.columns)}, expected one of "
            f"{', '.join(common)}; choose another with --{option} COLUMN"
        )
    return found[0]


def is_labelled(table: Table, column: str, split: str) -> bool:
    """Whether a split has labels: a test split may lack the column, or have placeholders.

    Raises:
      UserError: another split lacks the column.
    """
    if split != "test":
        files.check_column(table, column, "label")
        return True
    return column in table.columns and not are_hidden(table.parse_column(column))


def with_dev(
    data: str,
    read: Mapping[str, AnyExamples],
    fields: Mapping[str, Any],
    labels: Num[np.ndarray, "n *more"],
    groups: Int[np.ndarray, " n"] | None = None,
) -> tuple[dict[str, AnyExamples], tuple[str, ...]]:
    """Splits dev from train if there is no dev file.

    Args:
      data: The path of the data, for messages.
      read: Examples of the splits.
      fields: `config.data`.
      labels: Labels to stratify by: 0 or 1 for each class of each training example, class indices,
        or floats for none.
      groups: Index of each example's group, such as its context; a group is not divided. Groups
        are stratified by the classes of their examples.

    Returns:
      The splits in the order of `files.SPLITS`, and lines that describe the split.

    Raises:
      UserError: there is a single training example, or an option has no effect.
    """
    if "dev" in read:
        check_unused(data, fields)
        return {name: read[name] for name in files.SPLITS if name in read}, ()
    train, share = read["train"], fields["validation_fraction"] or DEV_SHARE
    if len(train) < 2:
        raise UserError(
            f"{data}: got {len(train)} example, expected 2 or more to split dev from train"
        )
    seed = fields["split_seed"] or 0
    if groups is not None and (count := int(groups.max()) + 1) > 1:
        chosen = choose_held_out(_presence(labels, groups, count), share, seed)[groups]
    else:
        chosen = choose_held_out(labels, share, seed)
    found = {
        "train": train.take(np.flatnonzero(~chosen)),
        "dev": train.take(np.flatnonzero(chosen)),
    }
    found |= {name: own for name, own in read.items() if name == "test"}
    line = f"no dev file: dev is {chosen.mean():.1%} of the rows (split_seed {seed})"
    return found, (line,)


def _presence(
    labels: Num[np.ndarray, "n *more"], groups: Int[np.ndarray, " n"], count: int
) -> Num[np.ndarray, "g *more"]:
    """Returns 0 or 1 for each group and class: whether an example has it; zeros for floats."""
    if np.issubdtype(labels.dtype, np.floating):
        return np.zeros(count, np.float32)
    one_hot = labels if labels.ndim == 2 else np.eye(labels.max() + 1, dtype=np.int8)[labels]
    found = np.zeros((count, one_hot.shape[1]), np.int8)
    np.maximum.at(found, groups, one_hot)
    return found
