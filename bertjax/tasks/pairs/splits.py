"""Read the splits of text pairs; without a dev file, the pairs of some anchors become one."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.tasks.pairs import tables
from bertjax.tasks.pairs.ranks import check_candidates
from bertjax.tasks.pairs.tables import PairExamples, PairLoss
from bertjax.tasks.sequence import files
from bertjax.tasks.tables import with_dev


@dataclasses.dataclass(frozen=True)
class PairSplits:
    """The splits of a data set of pairs.

    Attributes:
      name: Name of the file or folder.
      examples: Examples by split: `train`, `dev` and, where there is one, `test`.
      loss: The loss for which the training examples were read.
      held_out: Lines about the dev split, if it was made from training pairs.
    """

    name: str
    examples: dict[str, PairExamples]
    loss: PairLoss
    held_out: tuple[str, ...]

    def check_ranking(self) -> None:
        """Raises `UserError` if a split is ranked, and has nothing to rank a positive among."""
        fraction = ", or set a larger --config.data.validation_fraction" if self.held_out else ""
        for split in ("dev", *self.test):
            examples = self.examples[split]
            if examples.scores is None and not self.loss.is_scored:
                check_candidates(f"{self.name}, {split}", examples.text_ids, fraction)

    @property
    def test(self) -> tuple[str, ...]:
        """The name of the test split, if there is one."""
        return ("test",) if "test" in self.examples else ()


def read(
    data: str, fields: Mapping[str, Any], choose_loss: Callable[[Table], PairLoss]
) -> PairSplits:
    """Reads all splits.

    Args:
      data: A file, or a folder with a file for each split; see `tasks/sequence/files.py`.
      fields: `config.data`; see `tasks/pairs/dataset.py`.
      choose_loss: From the training table to the loss.

    Raises:
      UserError: a file, column or score is missing or invalid, or does not fit the config.
    """
    name = pathlib.Path(data).resolve().name.partition(".")[0] or "pairs"
    found = {
        split: tables.with_negative_lists(files.read_tables(own), fields)
        for split, own in files.find_splits(data).items()
    }
    loss = choose_loss(found["train"])
    train = tables.read_train(found["train"], loss, fields)
    examples = {"train": train}
    for split in [split for split in files.SPLITS if split in found and split != "train"]:
        examples[split] = tables.read_held_out(
            found[split], train, loss, fields, is_test=split == "test"
        )
    if "dev" not in examples and len(set(train.columns)) < 2:
        raise UserError(
            f"{name}: got one column of text, {train.columns[0]!r}, and no dev file; "
            "expected a folder with train and dev, whose dev file has pairs, with or without "
            "scores; add one, or choose a second column with --text_pair COLUMN"
        )
    numbers = {text: number for number, text in enumerate(dict.fromkeys(train.texts[0]))}
    anchors = np.array([numbers[text] for text in train.texts[0]])
    unlabelled = np.zeros(len(train), np.float32)
    examples, lines = with_dev(data, examples, fields, unlabelled, groups=anchors)
    if fields["label"] and examples["dev"].scores is None and not loss.is_distilled:
        raise UserError(
            f"config.data.label: got {fields['label']!r}, which neither trains nor evaluates, "
            "expected a column of scores of the dev file, or of all pairs; leave it out"
        )
    return PairSplits(name, examples, loss, lines)


def rescale(train: PairExamples, low: float, reason: str) -> tuple[PairExamples, str]:
    """Maps scores beyond [low, 1] from their range to [0, 1].

    Args:
      train: The training examples.
      low: The lowest score of the loss.
      reason: Reason for the mapping, in the description.

    Returns:
      The examples, and a line that describes the scores.
    """
    lowest, highest = float(train.scores.min()), float(train.scores.max())
    if lowest >= low and highest <= 1:
        return train, f"scores: from {lowest:.4g} to {highest:.4g}"
    scores = (train.scores - lowest) / (highest - lowest if highest > lowest else 1.0)
    line = f"scores: from {lowest:.4g} to {highest:.4g}, mapped to 0 and 1, since {reason}"
    return dataclasses.replace(train, scores=scores), line
