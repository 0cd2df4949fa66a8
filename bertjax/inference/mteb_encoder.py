"""Implement the encoder interface of mteb, a benchmark of embeddings, for trained models.

    mteb.evaluate(bertjax.load("runs/bert"), tasks=mteb.get_tasks(["STSBenchmark"]))

mteb (Muennighoff et al. 2023) evaluates any object with the methods of its `EncoderProtocol`. Texts
are embedded as by `Model.embed`, with the prompts, pooling and length of the model. mteb keeps
results under the name and revision of a model, so all settings that change the vectors are part of
the revision, and none is an option of `encode`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from bertjax.errors import UserError
from bertjax.huggingface import sentence_transformers
from bertjax.train.checkpoint.origin import PretrainedSource


class _EmbeddingModel(Protocol):
    """The attributes that `MtebEncoder` requires of its subclass, `inference/model.py`."""

    precision: str

    @property
    def source(self) -> PretrainedSource: ...

    @property
    def config(self) -> Any: ...

    def embed(
        self, texts: list[str], *, prompt: str | None, batch_size: int
    ) -> Float[np.ndarray, "n D"]: ...


class MtebEncoder:
    """The methods of mteb's `EncoderProtocol`, for a model that can `embed`."""

    def encode(
        self: _EmbeddingModel,
        inputs: Iterable[Mapping[str, Sequence[Any]]],
        *,
        batch_size: int = 64,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        show_progress_bar: bool = True,
        **options: Any,
    ) -> Float[np.ndarray, "n D"]:
        """Embeds the texts of a task of mteb; see `embed` for texts of your own.

        Queries and documents have the prompts of the model for them, if any, and other texts its
        default. Nothing else of the task changes the vectors; mteb shows its progress.

        Args:
          inputs: Batches with a list `text`, as a data loader of mteb yields them.
          batch_size: Number of texts per batch.
          task_metadata: Description of the task.
          hf_split: Split of the task.
          hf_subset: Subset of the task.
          prompt_type: Whether the texts are queries or documents.
          show_progress_bar: Whether mteb shows its progress.
          **options: Other options of mteb, all refused.

        Raises:
          UserError: an input has no text, or an option is unknown.
        """
        for name, value in options.items():
            raise UserError(
                f"encode_kwargs: got {name}={value!r}, expected batch_size only; set "
                "prompts, pooling and length with bertjax export --format sentence-transformers, "
                "and load the folder"
            )
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise UserError(
                    f"mteb: got inputs with {', '.join(batch)}, expected a task of text"
                )
            texts += batch["text"]
        prompts = sentence_transformers.choose(self.config).prompts
        name = getattr(prompt_type, "value", prompt_type)  # "query", "document" or None
        prompt = None if name is None else prompts.get(name, "")
        return self.embed(texts, prompt=prompt, batch_size=batch_size)

    def similarity(
        self, embeddings1: Float[np.ndarray, "n D"], embeddings2: Float[np.ndarray, "m D"]
    ) -> Float[np.ndarray, "n m"]:
        """Cosines of all pairs of embeddings; dot products, if the model compares by these."""
        return self._to_compare(embeddings1) @ self._to_compare(embeddings2).T

    def similarity_pairwise(
        self, embeddings1: Float[np.ndarray, "n D"], embeddings2: Float[np.ndarray, "n D"]
    ) -> Float[np.ndarray, " n"]:
        """Cosines of embeddings of the same row, or dot products."""
        return (self._to_compare(embeddings1) * self._to_compare(embeddings2)).sum(axis=-1)

    def _to_compare(self: _EmbeddingModel, vectors: Float[np.ndarray, "n D"]) -> np.ndarray:
        """Scales embeddings to unit length for cosines; one of zeros, of an empty text, is kept."""
        vectors = np.asarray(vectors, np.float32)
        if sentence_transformers.choose(self.config).similarity == sentence_transformers.DOT:
            return vectors
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
        return vectors / np.maximum(norms, np.finfo(np.float32).tiny)

    @property
    def mteb_model_meta(self: _EmbeddingModel) -> Any:
        """The `mteb.models.ModelMeta` under which mteb keeps results.

        The revision is the step, and a digest of all that determines the vectors: the run with its
        checkpoint and config, the precision, prompts, pooling and length.

        Raises:
          UserError: mteb is not installed, or the model's embedding settings are not supported.
        """
        try:
            from mteb.models import ModelMeta
        except ImportError as error:
            raise UserError(f"mteb: {error}; pip install 'bertjax[mteb]'") from None
        source, config = self.source, self.config
        settings = sentence_transformers.choose(config)
        found = [str(source.checkpoint), source.config, self.precision, repr(settings)]
        digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
        known = {
            "name": "bertjax/" + "-".join(source.run.parts[-2:]),
            "revision": f"{source.checkpoint.name}-{digest[:16]}",
            "max_tokens": settings.max_length,
            "embed_dim": config.model.hidden_size,
            "similarity_fn_name": settings.similarity,
            "framework": ["JAX"],
            "use_instructions": bool(settings.prompts),
        }
        return ModelMeta(**dict.fromkeys(_UNKNOWN), **known)


_UNKNOWN = (
    "loader",
    "release_date",
    "languages",
    "n_parameters",
    "memory_usage_mb",
    "license",
    "open_weights",
    "public_training_code",
    "public_training_data",
    "training_datasets",
)
"""Required fields of `ModelMeta` that a run does not have."""
