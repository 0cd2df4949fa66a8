"""Store the vectors of embedded texts next to an output, to resume after an interruption."""

import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float32

from bertjax.errors import UserError
from bertjax.inference.embeddings import TextEmbedder
from bertjax.inference.growing_arrays import GrowingArrays, ResumableTexts

_VECTORS = "vectors"


class StoredEmbedder:
    """Embeds texts like a `TextEmbedder`, and stores their vectors.

    The calls of `embed` must be the same ones, in the same order, as those that were interrupted.

    Args:
      embedder: The encoder.
      folder: Folder of the vectors; see `io.unfinished.parts_folder`.
    """

    def __init__(self, embedder: TextEmbedder, folder: pathlib.Path):
        self._embedder, self._folder = embedder, folder
        self._num_calls = self._num_restored = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    @property
    def num_truncated(self) -> int:
        """Number of texts so far that were longer than the maximum, stored ones included."""
        return self._embedder.num_truncated + self._num_restored

    def embed(
        self, texts: Iterable[str], *, total: int, first: int = 0, **options: Any
    ) -> Iterator[Float32[np.ndarray, "n D"]]:
        """Yields the vectors of groups of texts, in order; see `TextEmbedder.embed`.

        Raises:
          UserError: vectors of other texts, or with other options, are stored.
        """
        folder = self._folder / f"texts_{self._num_calls}"
        self._num_calls += 1
        reading, restored, group = ResumableTexts(texts, "--data"), 0, 0
        with GrowingArrays(folder) as arrays:
            if arrays.progress is not None:
                if (found := arrays.progress["options"]) != options:
                    raise UserError(
                        f"{folder} has vectors with {found}: got {options}; give the former "
                        f"options to resume, or remove {self._folder} to start anew"
                    )
                reading.resume(arrays.progress, self._folder)
                restored, group = arrays.progress["truncated"], arrays.progress["group"]
                self._num_restored += restored
                stored = arrays.read(_VECTORS)
                for start in range(0, len(stored), group):
                    yield np.array(stored[start : start + group])
            before = self._embedder.num_truncated
            for vectors in self._embedder.embed(
                reading, total=total, first=first + reading.num_done, **options
            ):
                arrays.append(_VECTORS, vectors)
                reading.done(len(vectors))
                truncated = restored + self._embedder.num_truncated - before
                group = group or len(vectors)
                arrays.save(
                    reading.progress()
                    | {"options": options, "truncated": truncated, "group": group}
                )
                yield vectors
