"""Host batches on their way to the devices, with the time that the loop waits for them."""

import time
from collections.abc import Iterable, Iterator, Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.train.report import Work
from bertjax.train.sharding import to_global


class Feed:
    """Places batches on a mesh and counts what each is worth.

    Args:
      batches: (step, this host's rows of its batch).
      mesh: Where they go.

    Attributes:
      wait_seconds: How long batches took to be built and placed so far.
    """

    def __init__(self, batches: Iterable[tuple[int, Mapping[str, np.ndarray]]], mesh: Mesh):
        self._batches, self._mesh = batches, mesh
        self._tokens: dict[int, int] = {}
        self.wait_seconds = 0.0

    def __iter__(self) -> Iterator[tuple[int, dict[str, jax.Array]]]:
        start = time.monotonic()
        for before, rows in self._batches:
            batch = to_global(rows, self._mesh)
            self._tokens[before + 1] = batch["input_ids"].size
            self.wait_seconds += time.monotonic() - start
            yield before, batch
            start = time.monotonic()

    def work(self, step: int) -> Work:
        """The tokens that the batch of a step has room for; asked once for each step."""
        return Work(tokens=self._tokens.pop(step), flops=0.0)
