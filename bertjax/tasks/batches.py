"""Batches of fine-tuning: every example once an epoch, with little padding and few shapes.

A batch is padded to the shortest of a few fixed lengths that holds it, since every shape is
compiled once. Padding changes no output, but random batches of texts of mixed length are mostly
padding: 78% of SST-2 in batches of 32. So examples are shuffled, sorted by length within groups of
a few batches and cut into batches, and the batches are shuffled; 1 batch a group is a plain
shuffle.

A mixture of tasks has batches of one task each, in random order (Liu et al. 2019).
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int, Num

from bertjax.errors import UserError
from bertjax.tasks.sequences import Pairs

Batch = dict[str, np.ndarray]

Rows = slice | Int[np.ndarray, " b"]
"""Which rows of a global batch one host builds."""
EVERY_ROW = slice(None)

PADDING = -1
"""Stands for an example where the last batch is short."""


@dataclasses.dataclass(frozen=True)
class PairBatches:
    """Batches of labelled sequences; each is a pure function of (seed, step).

    Attributes:
      pairs: The sequences.
      labels: What they are, or None.
      batch_size: Sequences of a global batch.
      padded_lengths: Lengths of a batch, ascending; the last holds every sequence.
      batches_per_group: Batches among which examples are sorted by length.
      seed: Of the shuffles.
      together: Sequences that follow each other and stay together: the choices of a question.
    """

    pairs: Pairs
    labels: Num[np.ndarray, "n *more"] | None
    batch_size: int
    padded_lengths: tuple[int, ...]
    batches_per_group: int = 1
    seed: int = 0
    together: int = 1

    def __post_init__(self):
        if self.batch_size < 1 or self.batches_per_group < 1:
            raise UserError(
                f"batch_size={self.batch_size} and batches_per_group={self.batches_per_group} "
                "must be at least 1"
            )
        if self.batch_size % self.together:
            raise UserError(
                f"batch_size={self.batch_size} counts sequences, of which {self.together} belong "
                f"together: expected a multiple of {self.together}"
            )
        max_length = int(self.pairs.lengths.max())
        if list(self.padded_lengths) != sorted(set(self.padded_lengths)):
            raise UserError(f"padded_lengths={self.padded_lengths} must ascend")
        if self.padded_lengths[-1] < max_length:
            raise UserError(
                f"padded_lengths={self.padded_lengths} must end with max_seq_length: a sequence "
                f"has {max_length} tokens"
            )

    @property
    def num_examples(self) -> int:
        """Sequences of an epoch."""
        return len(self.pairs)

    @property
    def batches_per_epoch(self) -> int:
        """Steps in which every example is seen once."""
        return -(-len(self.pairs) // self.batch_size)

    def contents(self) -> dict[str, np.ndarray]:
        """All that tells these examples from others, as named arrays."""
        arrays = {"tokens": self.pairs.tokens, "lengths": self.pairs.lengths}
        arrays["first_lengths"] = self.pairs.first_lengths
        arrays |= self.pairs.columns
        arrays |= {f"{name}_table": table for name, table in self.pairs.tables.items()}
        return arrays if self.labels is None else arrays | {"labels": self.labels}

    def training_batches(
        self, start_step: int = 0, rows: Rows = EVERY_ROW
    ) -> Iterator[tuple[int, Batch]]:
        """(step, batch) from a step on, epoch after epoch; `rows` is one host's part of a batch."""
        first_epoch = start_step // self.batches_per_epoch
        for epoch in itertools.count(first_epoch):
            first_step = epoch * self.batches_per_epoch
            for step, examples in enumerate(self.epoch_order(epoch), start=first_step):
                if step >= start_step:
                    yield step, self._batch(examples, rows)

    def evaluation_batches(
        self, rows: Rows = EVERY_ROW
    ) -> Iterator[tuple[Int[np.ndarray, " B"], Batch]]:
        """(numbers of the examples or PADDING, batch): every example once, the shortest first.

        These batches have no labels: what is predicted is scored on the host.
        """
        by_length = np.argsort(self._max_length, kind="stable")
        for groups in _cut(by_length, self.batch_size // self.together):
            examples = self._members(groups)
            yield examples, self._unlabelled(examples, rows)

    def epoch_order(self, epoch: int) -> Int[np.ndarray, "S B"]:
        """The examples of each batch of an epoch: each number once, PADDING in a short batch."""
        # The raw bits of a bit generator stay the same in every release of numpy.
        bits = np.random.Philox(key=[self.seed, epoch])
        shuffled = np.argsort(bits.random_raw(len(self._max_length)), kind="stable")
        per_batch = self.batch_size // self.together
        batches = []
        for start in range(0, len(shuffled), per_batch * self.batches_per_group):
            some = shuffled[start : start + per_batch * self.batches_per_group]
            by_length = np.argsort(self._padded(self._max_length[some]), kind="stable")
            batches.append(_cut(some[by_length], per_batch))
        order = np.concatenate(batches)
        order = order[np.argsort(bits.random_raw(len(order)), kind="stable")]
        return np.stack([self._members(groups) for groups in order])

    @functools.cached_property
    def _max_length(self) -> Int[np.ndarray, " g"]:
        """The length of the longest of each of those that stay together."""
        return self.pairs.lengths.reshape(-1, self.together).max(axis=1)

    def _members(self, groups: Int[np.ndarray, " b"]) -> Int[np.ndarray, " B"]:
        """The sequences of some groups, or PADDING for each."""
        members = groups[:, None] * self.together + np.arange(self.together)
        return np.where(groups[:, None] == PADDING, PADDING, members).reshape(-1)

    def _batch(self, examples: Int[np.ndarray, " B"], rows: Rows) -> Batch:
        batch = self._unlabelled(examples, rows)
        return (
            batch if self.labels is None else batch | {"labels": self.labels[batch["example_id"]]}
        )

    def _unlabelled(self, examples: Int[np.ndarray, " B"], rows: Rows) -> Batch:
        real = examples != PADDING
        # A copy of a real example fills a short batch, so that no row is without tokens.
        filled = np.where(real, examples, np.resize(examples[: self.together], len(examples)))
        length = int(self._padded(self.pairs.lengths[filled]).max())
        return self.pairs.rows(filled[rows], length) | {
            "example_id": filled[rows].astype(np.int32),
            "example_weight": real[rows].astype(np.float32),
        }

    def _padded(self, lengths: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The fixed length that each needs."""
        fixed = np.array(self.padded_lengths)
        return fixed[np.searchsorted(fixed, lengths)]


def _cut(examples: Int[np.ndarray, " n"], batch_size: int) -> Int[np.ndarray, "S B"]:
    """Cuts numbers into batches, the last filled with PADDING."""
    missing = -len(examples) % batch_size
    return np.pad(examples, (0, missing), constant_values=PADDING).reshape(-1, batch_size)


@dataclasses.dataclass(frozen=True)
class TaskMixture:
    """The training batches of all tasks of a run; each is a pure function of (seed, step).

    An epoch has every batch of every task's epoch once (algorithm 1), so that a task has a share
    of the steps that is as large as its part of the examples.

    Attributes:
      parts: The batches of each task, all of one size.
      seed: Of the shuffles.
    """

    parts: tuple[PairBatches, ...]
    seed: int = 0

    @property
    def batch_size(self) -> int:
        """Examples of a global batch."""
        return self.parts[0].batch_size

    @property
    def num_examples(self) -> int:
        """Sequences of an epoch."""
        return sum(part.num_examples for part in self.parts)

    def contents(self) -> dict[str, np.ndarray]:
        """Nothing that is not in its parts."""
        return {}

    @property
    def batches_per_epoch(self) -> int:
        """Steps in which every example is seen once."""
        return sum(part.batches_per_epoch for part in self.parts)

    def training_batches(
        self, start_step: int = 0, rows: Rows = EVERY_ROW
    ) -> Iterator[tuple[int, Batch]]:
        """(step, batch) from a step on; `task_ids` tells whose examples those of a batch are."""
        for epoch in itertools.count(start_step // self.batches_per_epoch):
            first_step = epoch * self.batches_per_epoch
            skipped = max(start_step - first_step, 0)
            order = self.order(epoch)
            done = np.bincount(order[:skipped], minlength=len(self.parts))
            streams = [
                dataclasses.replace(part, seed=self.seed).training_batches(
                    epoch * part.batches_per_epoch + int(begun), rows
                )
                for part, begun in zip(self.parts, done, strict=True)
            ]
            for step, task in enumerate(order[skipped:].tolist(), start=first_step + skipped):
                _, batch = next(streams[task])
                yield step, self._marked(batch, task)

    def order(self, epoch: int) -> Int[np.ndarray, " S"]:
        """Whose turn it is at each step of an epoch."""
        turns = np.repeat(
            np.arange(len(self.parts)), [part.batches_per_epoch for part in self.parts]
        )
        # Tasks draw theirs from [seed, epoch] alone.
        bits = np.random.Philox(key=[self.seed, epoch], counter=1 << 64)
        return turns[np.argsort(bits.random_raw(len(turns)), kind="stable")]

    def _marked(self, batch: Batch, task: int) -> Batch:
        """Labels of classes and of scores have one type, so that one program learns both."""
        labels = batch["labels"].astype(np.float32)
        return batch | {"labels": labels, "task_ids": np.full(len(labels), task, np.int32)}
