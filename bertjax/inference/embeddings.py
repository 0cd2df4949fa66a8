"""Embed texts as vectors whose dot product is the similarity of the model, usually the cosine.

load           run -> TextEmbedder
TextEmbedder   texts -> vectors, in the memory of a few batches
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import Float32

from bertjax import pretrained
from bertjax.huggingface import sentence_transformers
from bertjax.huggingface.sentence_transformers import DOT, EmbeddingSettings
from bertjax.inference import features
from bertjax.inference.features import FeatureExtractor

_BATCHES_PER_CHUNK = 64
"""Number of batches among which texts are sorted by length, and after which progress is shown."""

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
