"""Embed texts as vectors whose dot product is the similarity of the model, usually the cosine.

load             run -> TextEmbedder
TextEmbedder     texts -> vectors, in the memory of a few batches
StoredEmbedder   the same, with vectors stored next to an output, to resume after an interruption
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float32

from bertjax import pretrained
from bertjax.errors import UserError
from bertjax.huggingface import sentence_transformers
from bertjax.huggingface.sentence_transformers import DOT, EmbeddingSettings
from bertjax.inference import features
from bertjax.inference.features import FeatureExtractor
from bertjax.inference.growing_arrays import GrowingArrays, ResumableTexts

_BATCHES_PER_CHUNK = 64
"""Number of batches among which texts are sorted by length, and after which progress is shown."""

_VECTORS = "vectors"
"""Name of the stored array."""

Progress = Callable[[float | None, str], None]
"""Called with the share of the work that is done, None if unknown, and a line of text."""


@dataclasses.dataclass
class TextEmbedder:
    """Trained encoder that embeds texts.

    Attributes:
      extractor: The encoder, with pooling.
      settings: How the model embeds texts, with its prompts.
      batch_size: Number of texts per batch, of similar length.
      progress: Called after every few batches.
      num_truncated: Number of texts so far that were longer than the maximum.
    """

    extractor: FeatureExtractor
    settings: EmbeddingSettings
    batch_size: int
    progress: Progress
    num_truncated: int = 0

    def embed(
        self, texts: Iterable[str], *, total: int, first: int = 0, prompt: str = ""
    ) -> Iterator[Float32[np.ndarray, "n D"]]:
        """Yields the vectors of groups of texts, in order: unit vectors, if the model has cosines.

        Args:
          texts: Texts; longer ones are truncated.
          total: Number of all texts, for the progress.
          first: Number of those that were embedded before.
          prompt: Put before every text.
        """
        done = first
        prompted = (prompt + text for text in texts)
        for chunk, pooled in features.extract(
            self.extractor, prompted, "texts", batch_size=self.batch_size
        ):
            done += len(pooled)
            self.num_truncated += chunk.num_truncated
            self.progress(done / total, f"{done:,} of {total:,} texts")
            if self.settings.similarity == DOT and not self.settings.normalize:
                yield pooled[:, 0]
                continue
            norms = np.linalg.norm(pooled, axis=2)
            # Without special tokens, an empty text has a vector of zeros.
            yield pooled[:, 0] / np.maximum(norms, np.finfo(np.float32).tiny)


def load(
    model: str | pretrained.Pretrained,
    *,
    pooling: str,
    max_length: int,
    batch_size: int,
    precision: str,
    progress: Progress,
    dim: int = 0,
    prompts: Mapping[str, str | None] = MappingProxyType({}),
) -> TextEmbedder:
    """Loads an encoder that embeds texts.

    Args:
      model: RUN, RUN@STEP or RUN@best, or a loaded model; see `pretrained.load`.
      pooling: `mean`, `weighted` or `cls`; "" for that of the model, or mean.
      max_length: Maximum number of tokens of a sequence; 0 for that of the model, or 512.
      batch_size: Number of texts per batch.
      precision: As `config.model.precision`.
      progress: Called from time to time.
      dim: Number of the first values of an embedding that are kept; 0 for all.
      prompts: In place of those of the model, by name; None for that of the model.

    Raises:
      UserError: there is no such run or pooling, the run has no encoder of texts, the sequence is
        longer than the model's positions, or `pooling` is cls and the tokenizer has no [CLS].
    """
    run = pretrained.load(model)
    settings = sentence_transformers.choose(
        run.config, pooling=pooling, max_length=max_length, dim=dim, prompts=prompts
    )
    extractor = features.load(
        run,
        pooling=settings.pooling,
        dim=settings.dim,
        max_seq_length=settings.max_length,
        truncate=True,
        precision=precision,
    )
    size = batch_size * _BATCHES_PER_CHUNK
    reader = dataclasses.replace(extractor.reader, texts_per_chunk=size)
    extractor = dataclasses.replace(extractor, reader=reader)
    return TextEmbedder(extractor, settings, batch_size, progress)


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
