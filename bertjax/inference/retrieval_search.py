"""Search of documents by the method of a model: embeddings, token vectors or words."""

from collections.abc import Callable, Mapping

from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.inference import (
    bm25,
    dense_retrieval,
    embeddings,
    faiss_index,
    late_interaction,
)

BM25 = "bm25"
"""Name of the method that has no model."""


def search(
    model: str,
    collection: dense_retrieval.Collection,
    depth: int,
    *,
    index: str,
    pooling: str,
    max_length: int,
    batch_size: int,
    precision: str,
    progress: Callable[[float, str], None],
    prompts: Mapping[str, str | None],
) -> tuple[dict[str, list[str]], int]:
    """Returns the ids of the best documents of each query, and the number of truncated texts.

    Args:
      model: A run, a Hugging Face folder, or "bm25".
      collection: Documents and queries.
      depth: Length of a ranking.
      index: Index of FAISS for the embeddings; "" for exact search.
      pooling: `mean`, `weighted` or `cls`; "" for that of the model.
      max_length: Longer sequences are truncated; 0 for the length of the model.
      batch_size: Texts per batch.
      precision: As `config.model.precision`.
      progress: Called with the share of the work that is done, and a line of text.
      prompts: Put before queries and before documents, by name; None for those of the model.

    Raises:
      UserError: there is no such model, or the method has no such option.
    """
    given = {f"{name}_prompt": text or "" for name, text in prompts.items()}
    if model == BM25:
        _refuse(
            "model bm25, as it reads words",
            index=index,
            pooling=pooling,
            max_length=max_length,
            **given,
        )
        return bm25.search(collection, depth), 0
    run = run_cache.find_run(model)
    if late_interaction.is_trained_for(run):
        reason = "a colbert run, as it has a vector for each token"
        _refuse(reason, index=index, pooling=pooling, **given)
        searcher = late_interaction.load(
            run, max_length=max_length, batch_size=batch_size, precision=precision
        )
        return late_interaction.search(searcher, collection, depth, progress)
    embedder = embeddings.load(
        run,
        pooling=pooling,
        max_length=max_length,
        batch_size=batch_size,
        precision=precision,
        progress=progress,
        prompts=prompts,
    )
    if index:
        found = faiss_index.search(embedder, collection, index, depth)
    else:
        found = dense_retrieval.search(embedder, collection, depth)
    return found, embedder.num_truncated


def _refuse(method: str, **options: str | int) -> None:
    for name, value in options.items():
        if value:
            raise UserError(f"{name}: got {value} with {method}; leave it out")
