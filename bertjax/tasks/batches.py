"""Fine-tuning batches: every example once per epoch, bucketed by length into few shapes.

A batch is padded to the smallest of a few fixed lengths that fits, because every shape is compiled
once. Padding changes no output, but it costs time: random batches of 32 SST-2 sentences are 78%
padding. Examples are therefore shuffled, sorted by length within groups of a few batches and cut
into batches, and the batches are shuffled again; with 1 batch per group this is a plain shuffle.
Or the examples of a batch share rows (`layers/packed_rows.py`), which changes no batch's examples.

A mixture of tasks has batches of one task each, in random order (MT-DNN, Liu et al. 2019).
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int, Num

from bertjax.data import best_fit
from bertjax.data.layout import ranges
from bertjax.errors import UserError
from bertjax.tasks.sequences import Pairs

Batch = dict[str, np.ndarray]

Rows = slice | Int[np.ndarray, " b"]
"""The rows of a global batch that one host builds."""
EVERY_ROW = slice(None)

ROW_COUNTS = 8
"""Number of different row counts of a packed group, each of which is compiled once."""

PADDING = -1
"""The example number of a padding row in a short last batch."""


@dataclasses.dataclass(frozen=True)
class PairBatches:
    """Batches of labelled sequences; each is a pure function of (seed, step).

    Attributes:
      pairs: The sequences.
      labels: One label per sequence, or None.
      batch_size: Sequences per global batch.
      padded_lengths: Allowed lengths of a batch in tokens, ascending; the last fits every sequence.
      batches_per_group: Number of batches within which examples are sorted by length.
      seed: Seed of the shuffles.
      group_size: Number of consecutive sequences that stay in one batch: the choices of a question.
      packed_examples: Number of consecutive sequences of a training batch that share rows; 0 for
        none that do. Rows then have one length, and their number is one of eight.

    Raises:
      UserError: a size is below 1, or the lengths do not ascend or are too short; or rows cannot be
        shared.
    """

    pairs: Pairs
    labels: Num[np.ndarray, "n *more"] | None
    batch_size: int
    padded_lengths: tuple[int, ...]
    batches_per_group: int = 1
    seed: int = 0
    group_size: int = 1
    packed_examples: int = 0

    def __post_init__(self):
        if self.batch_size < 1 or self.batches_per_group < 1:
            raise UserError(
                f"batch_size={self.batch_size} and batches_per_group={self.batches_per_group}: "
                "expected both >= 1"
            )
        if self.batch_size % self.group_size:
            raise UserError(
                f"batch_size={self.batch_size} is counted in sequences, {self.group_size} per "
                f"question: expected a multiple of {self.group_size}"
            )
        max_length = int(self.pairs.lengths.max())
        if list(self.padded_lengths) != sorted(set(self.padded_lengths)):
            raise UserError(
                f"padded_lengths={self.padded_lengths}: expected distinct lengths in ascending "
                "order"
            )
        if self.padded_lengths[-1] < max_length:
            raise UserError(
                f"padded_lengths={self.padded_lengths}: the longest sequence has {max_length} "
                "tokens; end with max_seq_length"
            )
        self._check_packing()

    def _check_packing(self) -> None:
        if self.packed_examples % ROW_COUNTS or (
            self.packed_examples and self.batch_size % self.packed_examples
        ):
            raise UserError(
                f"packed_examples={self.packed_examples}: expected 0, or a multiple of "
                f"{ROW_COUNTS} that divides batch_size={self.batch_size}"
            )
        if self.packed_examples and self._row_length % ROW_COUNTS:
            raise UserError(
                f"packed_examples={self.packed_examples} requires rows of a multiple of "
                f"{ROW_COUNTS} tokens: got {self._row_length}; change max_seq_length or "
                "padded_lengths"
            )

    @property
    def num_examples(self) -> int:
        """Number of sequences per epoch."""
        return len(self.pairs)

    @property
    def batches_per_epoch(self) -> int:
        """Number of steps per epoch."""
        return -(-len(self.pairs) // self.batch_size)

    def contents(self) -> dict[str, np.ndarray]:
        """Returns the arrays that identify these examples; the run fingerprints them."""
        arrays = {"tokens": self.pairs.tokens, "lengths": self.pairs.lengths}
        arrays["first_lengths"] = self.pairs.first_lengths
        arrays |= self.pairs.columns
        arrays |= {f"{name}_table": table for name, table in self.pairs.tables.items()}
        return arrays if self.labels is None else arrays | {"labels": self.labels}

    def training_batches(
        self, start_step: int = 0, rows: Rows = EVERY_ROW
    ) -> Iterator[tuple[int, Batch]]:
        """Yields (step, batch) without end, epoch after epoch.

        Args:
          start_step: The step to start with; seeking is O(1) in epochs.
          rows: The rows of each global batch that this host builds.
        """
        first_epoch = start_step // self.batches_per_epoch
        for epoch in itertools.count(first_epoch):
            first_step = epoch * self.batches_per_epoch
            for step, examples in enumerate(self.epoch_order(epoch), start=first_step):
                if step >= start_step:
                    yield step, self._batch(examples, rows)

    def evaluation_batches(
        self, rows: Rows = EVERY_ROW
    ) -> Iterator[tuple[Int[np.ndarray, " B"], Batch]]:
        """Yields (example numbers or PADDING, batch): every example once, shortest first.

        The batches have no labels: predictions are scored on the host.
        """
        by_length = np.argsort(self._max_length, kind="stable")
        for groups in _split_batches(by_length, self.batch_size // self.group_size):
            examples = self._members(groups)
            yield examples, self._make_inputs(examples, rows)

    def epoch_order(self, epoch: int) -> Int[np.ndarray, "S B"]:
        """Returns the example numbers of each batch of an epoch: each once, PADDING at the end."""
        # The raw bits of a bit generator stay the same in every release of numpy.
        bits = np.random.Philox(key=[self.seed, epoch])
        shuffled = np.argsort(bits.random_raw(len(self._max_length)), kind="stable")
        per_batch = self.batch_size // self.group_size
        batches = []
        for start in range(0, len(shuffled), per_batch * self.batches_per_group):
            some = shuffled[start : start + per_batch * self.batches_per_group]
            by_length = np.argsort(self._padded_sizes(self._max_length[some]), kind="stable")
            batches.append(_split_batches(some[by_length], per_batch))
        order = np.concatenate(batches)
        order = order[np.argsort(bits.random_raw(len(order)), kind="stable")]
        return np.stack([self._members(groups) for groups in order])

    @functools.cached_property
    def _max_length(self) -> Int[np.ndarray, " g"]:
        """The longest sequence of each group of `group_size`, in tokens."""
        return self.pairs.lengths.reshape(-1, self.group_size).max(axis=1)

    def _members(self, groups: Int[np.ndarray, " b"]) -> Int[np.ndarray, " B"]:
        """Returns the sequence numbers of these groups; PADDING for each of a PADDING group."""
        members = groups[:, None] * self.group_size + np.arange(self.group_size)
        return np.where(groups[:, None] == PADDING, PADDING, members).reshape(-1)

    def _batch(self, examples: Int[np.ndarray, " B"], rows: Rows) -> Batch:
        batch = self._make_inputs(examples, rows, self._row_length if self.packed_examples else 0)
        if self.packed_examples:
            packed = self._pack(self.pairs.lengths[self._filled(examples)])
            batch["packed_tokens"] = packed[rows].astype(np.int32)
        return (
            batch if self.labels is None else batch | {"labels": self.labels[batch["example_id"]]}
        )

    def _filled(self, examples: Int[np.ndarray, " B"]) -> Int[np.ndarray, " B"]:
        """Replaces PADDING by the first example or question, so that no row is without tokens."""
        first = np.resize(examples[: self.group_size], len(examples))
        return np.where(examples == PADDING, first, examples)

    def _make_inputs(self, examples: Int[np.ndarray, " B"], rows: Rows, length: int = 0) -> Batch:
        """The inputs of a batch, padded to `length`, or to the smallest allowed one if it is 0."""
        real, filled = examples != PADDING, self._filled(examples)
        length = length or int(self._padded_sizes(self.pairs.lengths[filled]).max())
        return self.pairs.rows(filled[rows], length) | {
            "example_id": filled[rows].astype(np.int32),
            "example_weight": real[rows].astype(np.float32),
        }

    @functools.cached_property
    def _row_length(self) -> int:
        """Length of rows that examples share: that of the longest sequence, padded."""
        return int(self._padded_sizes(self.pairs.lengths).max())

    def _pack(self, lengths: Int[np.ndarray, " B"]) -> Int[np.ndarray, "B S"]:
        """`packed_tokens` of sequences of these lengths; see `interfaces.py`."""
        length, size = self._row_length, self.packed_examples
        starts, num_rows = np.zeros(len(lengths), np.int64), 1
        for group in range(0, len(lengths), size):
            members = slice(group, group + size)
            row, offset = best_fit.place(lengths[members], length)
            starts[members] = row * length + offset
            num_rows = max(num_rows, int(row.max()) + 1)
        unit = size // ROW_COUNTS
        num_slots = -(-num_rows // unit) * unit * length
        group, member = np.divmod(np.arange(len(lengths)), size)
        packed = np.full(len(lengths) // size * num_slots, -1)
        tokens = ranges(member * length, lengths)
        packed[ranges(group * num_slots + starts, lengths)] = tokens
        return packed.reshape(len(lengths), -1)

    def _padded_sizes(self, lengths: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Returns the smallest allowed length for each."""
        fixed = np.array(self.padded_lengths)
        return fixed[np.searchsorted(fixed, lengths)]


def _split_batches(examples: Int[np.ndarray, " n"], batch_size: int) -> Int[np.ndarray, "S B"]:
    """Cuts example numbers into batches; the last is filled with PADDING."""
    missing = -len(examples) % batch_size
    return np.pad(examples, (0, missing), constant_values=PADDING).reshape(-1, batch_size)


@dataclasses.dataclass(frozen=True)
class TaskMixture:
    """The training batches of all tasks of a run; each is a pure function of (seed, step).

    An epoch contains every batch of every task's epoch once (Liu et al. 2019, algorithm 1), so
    tasks are sampled in proportion to their number of examples.

    Attributes:
      parts: The batches of each task, all of the same batch size.
      seed: Seed of the shuffles.
    """

    parts: tuple[PairBatches, ...]
    seed: int = 0

    @property
    def batch_size(self) -> int:
        """Sequences per global batch."""
        return self.parts[0].batch_size

    @property
    def num_examples(self) -> int:
        """Number of sequences per epoch."""
        return sum(part.num_examples for part in self.parts)

    def contents(self) -> dict[str, np.ndarray]:
        """Returns nothing: the parts are fingerprinted on their own."""
        return {}

    @property
    def batches_per_epoch(self) -> int:
        """Number of steps per epoch."""
        return sum(part.batches_per_epoch for part in self.parts)

    def training_batches(
        self, start_step: int = 0, rows: Rows = EVERY_ROW
    ) -> Iterator[tuple[int, Batch]]:
        """Yields (step, batch) without end; `task_ids` is the index of the batch's task."""
        for epoch in itertools.count(start_step // self.batches_per_epoch):
            first_step = epoch * self.batches_per_epoch
            skipped = max(start_step - first_step, 0)
            order = self.order(epoch)
            consumed = np.bincount(order[:skipped], minlength=len(self.parts))
            streams = [
                dataclasses.replace(part, seed=self.seed).training_batches(
                    epoch * part.batches_per_epoch + int(count), rows
                )
                for part, count in zip(self.parts, consumed, strict=True)
            ]
            for step, task in enumerate(order[skipped:].tolist(), start=first_step + skipped):
                _, batch = next(streams[task])
                yield step, self._with_task_ids(batch, task)

    def order(self, epoch: int) -> Int[np.ndarray, " S"]:
        """Returns the index of the task of each step of an epoch."""
        turns = np.repeat(
            np.arange(len(self.parts)), [part.batches_per_epoch for part in self.parts]
        )
        # The shuffles of single tasks use the same key with counter 0: this one must differ.
        bits = np.random.Philox(key=[self.seed, epoch], counter=1 << 64)
        return turns[np.argsort(bits.random_raw(len(turns)), kind="stable")]

    def _with_task_ids(self, batch: Batch, task: int) -> Batch:
        # Class labels become float32 like regression targets: one compiled step serves all tasks.
        labels = batch["labels"].astype(np.float32)
        return batch | {"labels": labels, "task_ids": np.full(len(labels), task, np.int32)}
