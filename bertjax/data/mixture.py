"""Examples of several sources: mixed by weights for training, all of them for evaluation.

The source of row r of step s is a pure function of (seed, position), like the example itself: the
rows are divided into periods of fixed length, in each of which every source has the same number of
rows, in a random order. So any row is found without the rows before it, on any number of hosts.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Float, Int

from bertjax.data.format import ExampleSource, HostBatch, mean_tokens
from bertjax.data.layout import offsets
from bertjax.data.random import permute
from bertjax.errors import UserError

PERIOD = 1 << 16
"""Rows of a period. Shares of examples are multiples of its inverse."""


class MixtureExamples:
    """An endless sequence of examples of several sources, with given shares of tokens.

    An epoch of the pipeline is a period here. The examples of a source are used in the order of its
    own epochs.

    Attributes:
      seed: Seed of the order.
      max_seq_length: L.
      num_examples: Number of examples of a period.
      shares: Share of each source in the examples, by name.

    Args:
      sources: The sources by name, of one length.
      weights: Share of each in the tokens, with the sum 1.
      skipped: Number of examples of each source that earlier phases have used; absent for 0.

    Raises:
      UserError: A weight is positive, but too small for one example in a period.
    """

    def __init__(
        self,
        sources: Mapping[str, ExampleSource],
        weights: Sequence[float],
        skipped: Mapping[str, int] = MappingProxyType({}),
    ):
        self._names, self._sources = list(sources), list(sources.values())
        self.seed = self._sources[0].seed
        self.max_seq_length = self._sources[0].max_seq_length
        self.num_examples = PERIOD
        self._mean_tokens = np.array([mean_tokens(source) for source in self._sources])
        rows = np.array(weights) / self._mean_tokens
        self._counts = _round_to(rows / rows.sum(), PERIOD)
        for name, weight, count in zip(self._names, weights, self._counts, strict=True):
            if weight and not count:
                raise UserError(
                    f"config.data.mixture: got weight {weight:g} of {name}, expected more than "
                    f"one in {PERIOD:,} examples; raise it, or remove {name}"
                )
        self._starts = offsets(self._counts)
        self._skipped = np.array([skipped.get(name, 0) for name in self._names])

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The numbers of the examples at positions of a period, in a random permutation."""
        return permute(rank, PERIOD, self.seed, "mixture", epoch)

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds examples of a period by number: those of the first source come first."""
        example = np.asarray(example, np.int64)
        source = self._source_of(example)
        rank = epoch * self._counts[source] + example - self._starts[source]
        rank += self._skipped[source]
        sizes = np.array([one.num_examples for one in self._sources])
        epochs, ranks = np.divmod(rank, sizes[source])
        groups = np.stack([source, epochs], axis=1)
        batch: HostBatch = {}
        for number, own_epoch in np.unique(groups, axis=0).tolist():
            rows = np.flatnonzero((groups == (number, own_epoch)).all(axis=1))
            one = self._sources[number]
            _put_rows(
                batch, rows, len(example), one.build(own_epoch, one.order(own_epoch, ranks[rows]))
            )
        return batch

    def _source_of(self, example: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        return np.searchsorted(self._starts, example, side="right") - 1

    def usage(self, num_rows: int) -> dict[str, dict[str, float]]:
        """Counts the examples, tokens and epochs of each source in the first rows.

        Returns:
          By name: `examples`, `tokens` (by the mean of a sample of its examples) and `epochs`.
        """
        periods, rest = divmod(num_rows, PERIOD)
        last = self._source_of(self.order(periods, np.arange(rest)))
        counts = periods * self._counts + np.bincount(last, minlength=len(self._counts))
        return {
            name: {
                "examples": int(count),
                "tokens": float(count * mean),
                "epochs": float(count / source.num_examples),
            }
            for name, source, count, mean in zip(
                self._names, self._sources, counts, self._mean_tokens, strict=True
            )
        }


class JoinedExamples:
    """The examples of several sources, each once in an epoch, in a random order.

    Attributes:
      seed: Seed of the order.
      max_seq_length: L.
      num_examples: Number of examples of all sources.
    """

    def __init__(self, sources: Sequence[ExampleSource]):
        self._sources = sources
        self.seed, self.max_seq_length = sources[0].seed, sources[0].max_seq_length
        self._starts = offsets(np.array([source.num_examples for source in sources]))
        self.num_examples = int(self._starts[-1])

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The numbers of the examples at positions of an epoch."""
        return permute(rank, self.num_examples, self.seed, "order", epoch)

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> HostBatch:
        """Builds examples of an epoch by number; those of the first source come first."""
        example = np.asarray(example, np.int64)
        number = np.searchsorted(self._starts, example, side="right") - 1
        batch: HostBatch = {}
        for one in np.unique(number).tolist():
            rows = np.flatnonzero(number == one)
            part = self._sources[one].build(epoch, example[rows] - self._starts[one])
            _put_rows(batch, rows, len(example), part)
        batch["example_id"] = example.astype(np.uint32)
        return batch


def _put_rows(batch: HostBatch, rows: Int[np.ndarray, " n"], size: int, part: HostBatch) -> None:
    """Put the arrays of some rows into a batch of `size` rows."""
    for key, values in part.items():
        whole = batch.setdefault(key, np.empty((size, *values.shape[1:]), values.dtype))
        whole[rows] = values


def _round_to(shares: Float[np.ndarray, " n"], total: int) -> Int[np.ndarray, " n"]:
    """Round shares of a total to integers with its sum, by the largest remainders."""
    counts = np.floor(shares * total).astype(np.int64)
    rest = np.argsort(counts - shares * total, kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return counts
