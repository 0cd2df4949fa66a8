"""Retrieve documents by dense embeddings, late interaction or BM25.

search   the best documents of each query
rank     search, then sorting of the first documents by a cross-encoder
"""

import contextlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax import pretrained
from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.inference import (
    bm25,
    dense_retrieval,
    embeddings,
    faiss_index,
    late_interaction,
    reranking,
)
from bertjax.io import copies, storage
from bertjax.io.files import write_output
from bertjax.io.unfinished import parts_folder
from bertjax.metrics.retrieval import DEPTH

BM25 = "bm25"
"""Name of the method that has no model."""


def rank(
    model: str,
    collection: dense_retrieval.Collection,
    *,
    reranker: str,
    rerank_depth: int,
    output: str,
    **options: Any,
) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Searches documents, sorts the first ones by a cross-encoder, and writes the rankings.

    Args:
      model: As of `search`.
      collection: Documents and queries.
      reranker: A cross-encoder; "" for none.
      rerank_depth: Number of documents of each query that it sorts.
      output: A file of JSON lines; "" for none.
      **options: Options of `search`.

    Returns:
      The ids of the best documents of each query, and the numbers of truncated texts and pairs.

    Raises:
      UserError: a model is missing or has no such option, the model is a cross-encoder, or the file
        cannot be written.
    """
    if output:
        storage.check_file(storage.to_path(output))
    sizes = {name: options[name] for name in ("batch_size", "precision")}
    if model != BM25 and reranking.is_cross_encoder(run_cache.find_run(model)):
        raise UserError(
            f"model: got {model}, a cross-encoder, which does not embed single texts; give it as "
            "the reranker of another model, such as --model bm25 --reranker RUN"
        )
    # Loaded first, so that a wrong model is found before a long search.
    sorter = reranking.load(run_cache.find_run(reranker), **sizes) if reranker else None
    depth = max(DEPTH, rerank_depth if sorter else 0)
    settings = {name: options[name] for name in ("pooling", "dim", "max_length")} | sizes
    settings["depth"] = depth + options["ignore_identical_ids"]
    settings["rerank_depth"] = rerank_depth
    with _open_parts(output, model, reranker, settings) as parts:
        rankings, num_truncated = search(model, collection, depth, parts=parts, **options)
        counts = {"truncated": num_truncated}
        if sorter:
            rankings, counts["truncated_pairs"] = reranking.rerank(
                sorter, rankings, collection, rerank_depth, options["progress"], parts
            )
        if output:
            rows = [{"query": query, "documents": found} for query, found in rankings.items()]
            with copies.upload_file(output) as file:
                write_output(pathlib.Path(file), "".join(json.dumps(row) + "\n" for row in rows))
    return rankings, counts


def search(
    model: str,
    collection: dense_retrieval.Collection,
    depth: int,
    *,
    ignore_identical_ids: bool,
    index: str,
    pooling: str,
    dim: int,
    max_length: int,
    batch_size: int,
    precision: str,
    progress: embeddings.Progress,
    prompts: Mapping[str, str | None],
    parts: pathlib.Path | None = None,
) -> tuple[dict[str, list[str]], int]:
    """Returns the ids of the best documents of each query, and the number of truncated texts.

    Args:
      model: A run, a Hugging Face folder, or "bm25".
      collection: Documents and queries.
      depth: Length of a ranking.
      ignore_identical_ids: Whether a document is not found by the query that has its id, as in BEIR
        for collections whose queries are documents (ArguAna, Quora).
      index: Index of FAISS for the embeddings; "" for exact search.
      pooling: `mean`, `weighted` or `cls`; "" for that of the model.
      dim: Number of the first values of an embedding that are kept; 0 for all.
      max_length: Longer sequences are truncated; 0 for the length of the model.
      batch_size: Texts per batch.
      precision: As `config.model.precision`.
      progress: Called with the share of the work that is done, None if unknown, and a line of text.
      prompts: Put before queries and before documents, by name; None for those of the model.
      parts: Folder of finished parts, to resume; None for none.

    Raises:
      UserError: there is no such model, or the method has no such option.
    """
    max_depth = depth + ignore_identical_ids
    given = {f"{name}_prompt": text or "" for name, text in prompts.items()}
    if model == BM25:
        given |= {"index": index, "pooling": pooling, "dim": dim, "max_length": max_length}
        _refuse("model bm25, as it reads words", **given)
        found, num_truncated = bm25.search(collection, max_depth, progress), 0
    elif late_interaction.is_trained_for(run := run_cache.find_run(model)):
        method = "a colbert run, as it has a vector for each token"
        _refuse(method, index=index, pooling=pooling, dim=dim, **given)
        searcher = late_interaction.load(
            run, max_length=max_length, batch_size=batch_size, precision=precision
        )
        found, num_truncated = late_interaction.search(
            searcher, collection, max_depth, progress, parts
        )
    else:
        embedder = embeddings.load(
            run,
            pooling=pooling,
            max_length=max_length,
            batch_size=batch_size,
            precision=precision,
            progress=progress,
            dim=dim,
            prompts=prompts,
        )
        if parts is not None:
            embedder = embeddings.StoredEmbedder(embedder, parts)
        if index:
            found = faiss_index.search(embedder, collection, index, max_depth, progress)
        else:
            found = dense_retrieval.search(embedder, collection, max_depth)
        num_truncated = embedder.num_truncated
    if ignore_identical_ids:
        found = {
            query: [key for key in ranked if key != query][:depth]
            for query, ranked in found.items()
        }
    return found, num_truncated


def _refuse(method: str, **options: str | int) -> None:
    for name, value in options.items():
        if value:
            raise UserError(f"{name}: got {value} with {method}; leave it out")


def _open_parts(
    output: str, model: str, reranker: str, settings: Mapping[str, Any]
) -> contextlib.AbstractContextManager[pathlib.Path | None]:
    """The folder in which the parts of an output file are stored, None without a file."""
    if not output:
        return contextlib.nullcontext()

    def identity(name: str) -> dict[str, Any]:
        return pretrained.load(run_cache.find_run(name)).identity()

    models = {"model": BM25} if model == BM25 else identity(model)
    models["reranker"] = identity(reranker) if reranker else ""
    return parts_folder(output, settings | models)
