"""Several tasks learned together: batches of one task each, in random order (Liu et al. 2019)."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from bertjax.data.pair_batches import EVERY_ROW, Batch, PairBatches, Rows


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
