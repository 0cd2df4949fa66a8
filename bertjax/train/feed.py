"""Transfer host batches to the devices, and time how long the loop waits for them."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.interfaces import extent
from bertjax.train.report import Work
from bertjax.train.sharding import to_global


class Feed:
    """Places batches on a mesh and counts their tokens and FLOPs.

    Args:
      batches: (step, this host's rows of its batch).
      mesh: Where they are placed.
      flops: FLOPs of the model for a step on a batch of this shape, (B, L).

    Attributes:
      wait_seconds: Total time spent on building and placing batches.
    """

    def __init__(
        self,
        batches: Iterable[tuple[int, Mapping[str, np.ndarray]]],
        mesh: Mesh,
        flops: Callable[[tuple[int, ...]], float] = lambda shape: 0.0,
    ):
        self._batches, self._mesh, self._flops = batches, mesh, flops
        self._shapes: dict[int, tuple[int, ...]] = {}
        self.wait_seconds = 0.0

    def __iter__(self) -> Iterator[tuple[int, dict[str, jax.Array]]]:
        start = time.monotonic()
        for before, rows in self._batches:
            batch = to_global(rows, self._mesh)
            self._shapes[before + 1] = extent(batch)
            self.wait_seconds += time.monotonic() - start
            yield before, batch
            start = time.monotonic()

    def work(self, step: int) -> Work:
        """Tokens and FLOPs of the batch of a step; called once for each step."""
        shape = self._shapes.pop(step)
        return Work(tokens=math.prod(shape), flops=self._flops(shape))
