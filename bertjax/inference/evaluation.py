"""Evaluate models without training: language models, embeddings, classifiers, predictions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bertjax.corpus import sources, text
from bertjax.errors import UserError, nearest
from bertjax.huggingface import run_cache
from bertjax.huggingface.sentence_transformers import DOCUMENT, QUERY, find_prompt
from bertjax.inference import (
    dense_retrieval,
    embeddings,
    labelled_tables,
    language_model,
    retrieval_search,
    similarity,
)
from bertjax.inference import perplexity as windows
from bertjax.inference.likelihood_evaluations import blimp, choices, ewok
from bertjax.io import copies
from bertjax.metrics.retrieval import DEPTH
from bertjax.metrics.retrieval import score as score_rankings
from bertjax.tasks import official


def evaluate(kind: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Evaluates a model, or a file of predictions.

    >>> scores = bertjax.evaluate("perplexity", "runs/gpt2", ["text/*.txt"])
    >>> 1 < scores["perplexity"] < float("inf")
    True
    >>> scores = bertjax.evaluate("predictions", "rte", "RTE.tsv", references="data/RTE/dev.tsv")
    >>> 0 <= scores["accuracy"] <= 1
    True

    Args:
      kind: `perplexity`, `choices`, `blimp`, `ewok`, `sts`, `retrieval`, `table` or `predictions`;
        see `KINDS`.
      *arguments: Those of the function.
      **options: Those of the function.

    Raises:
      UserError: the kind is unknown, or an argument is invalid.
    """
    if kind not in KINDS:
        raise UserError(f"unknown evaluation {kind!r}: {nearest(kind, KINDS)}")
    return KINDS[kind](*arguments, **options)


def perplexity(
    model: str,
    inputs: Sequence[str],
    *,
    format: str = "auto",
    text_field: str = "",
    max_length: int = 0,
    stride: int = 0,
    batch_size: int = 8,
    precision: str = "auto",
) -> dict[str, float]:
    """Measures the perplexity of a causal language model on texts.

    Args:
      model: A run, or a Hugging Face folder; see `bertjax.load`.
      inputs: Globs of text, or tfds:NAME:SPLIT, as of `bertjax.prepare`.
      format: Format of the files, as of `bertjax.prepare`.
      text_field: Field of JSON lines, or column of a table, with the text; "" for "text".
      max_length: Tokens per window; 0 for the length of the training sequences.
      stride: Tokens between the starts of windows; 0 for half a window.
      batch_size: Windows per batch.
      precision: As `config.model.precision`.

    Returns:
      `perplexity` per token, `bits_per_byte`, `nats_per_token`, `accuracy` of the most likely
      token, `unknown_share` (fraction of [UNK]), and counts.

    Raises:
      UserError: there is no such model or text, or a window is too long for the model.
    """
    text.check_sources(sources.find_sources(inputs), format=format, text_field=text_field)
    result = windows.measure(
        language_model.load(run_cache.find_run(model), precision),
        text.read_documents(inputs, format=format, text_field=text_field),
        length=max_length,
        stride=stride,
        batch_size=batch_size,
    )
    return {
        "perplexity": result.perplexity,
        "bits_per_byte": result.bits_per_byte,
        "nats_per_token": result.nats / result.num_tokens,
        "accuracy": result.num_correct / result.num_tokens,
        "unknown_share": result.num_unknown / result.num_tokens,
        "tokens": result.num_tokens,
        "bytes": result.num_bytes,
        "documents": result.num_documents,
    }


def sts(
    model: str,
    data: str,
    *,
    text: str = "",
    text_pair: str = "",
    label: str = "",
    prompt: str | None = None,
    prompt_name: str = "",
    pooling: str = "",
    dim: int = 0,
    max_length: int = 0,
    batch_size: int = 64,
    precision: str = "auto",
    progress: embeddings.Progress = lambda share, text: None,
) -> dict[str, float]:
    """Compares similarities of sentence embeddings with human scores, as in STS, without training.

    Args:
      model: A run, or a Hugging Face folder.
      data: The folder with GLUE's `STS-B/`, or `tfds:DIR`, of which the dev split is read; or a
        table of pairs of sentences and scores.
      text: Column of the first sentence of a table; "" for one with a common name.
      text_pair: Column of the second sentence.
      label: Column of the score.
      prompt: Put before every sentence; None for that of `prompt_name`.
      prompt_name: A prompt of the model, such as `query`; "" for its default, usually none.
      pooling: `mean` over the tokens of a sequence, special ones included, `weighted` or `cls`; ""
        for that of the model, or mean.
      dim: Number of the first values of an embedding that are kept; 0 for all.
      max_length: Longer sequences are truncated; 0 for the length of the model, or 512.
      batch_size: Sentences per batch.
      precision: As `config.model.precision`.
      progress: Called with the share of the work that is done, and a line of text.

    Returns:
      `pearson_cosine` and `spearman_cosine`, or `pearson_dot` and `spearman_dot` of a model that
      compares by dot products; and the numbers of `pairs` and of `truncated` sentences.

    Raises:
      UserError: there is no such model, data or column, or a score is not a number.
    """
    columns = {"text": text, "text_pair": text_pair, "label": label}
    examples = similarity.read(str(copies.local_copy(data)), columns)
    embedder = embeddings.load(
        run_cache.find_run(model),
        pooling=pooling,
        dim=dim,
        max_length=max_length,
        batch_size=batch_size,
        precision=precision,
        progress=progress,
    )
    text_before = find_prompt(embedder.settings, prompt, prompt_name)
    found = similarity.similarities(embedder, examples, text_before)
    scores, name = np.asarray(examples.labels), embedder.settings.similarity
    counts = {"pairs": len(examples), "truncated": embedder.num_truncated}
    return similarity.correlations(found, scores, name) | counts


def retrieval(
    model: str,
    data: str,
    *,
    split: str = "test",
    ignore_identical_ids: bool = False,
    index: str = "",
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    pooling: str = "",
    dim: int = 0,
    max_length: int = 0,
    reranker: str = "",
    rerank_depth: int = DEPTH,
    batch_size: int = 64,
    precision: str = "auto",
    output: str = "",
    progress: embeddings.Progress = lambda share, text: None,
) -> dict[str, float]:
    """Searches documents, as in BEIR: by embeddings or BM25, optionally with a reranker.

    Args:
      model: A run, or a Hugging Face folder, whose embeddings are compared by their cosine, or the
        dot product if it was trained with that; a run of the config `colbert`, whose token vectors
        are compared; or "bm25", which compares words.
      data: A folder with `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`.
      split: Name of the judgements.
      ignore_identical_ids: Whether a document is not found by the query that has its id, as in
        BEIR.
      index: Index of FAISS, such as `HNSW32`, that is searched for the nearest embeddings; "" for
        exact search.
      query_prompt: Put before every query; None for that of the model, if any.
      document_prompt: Put before every document, likewise.
      pooling: `mean` over the tokens of a sequence, special ones included, `weighted` or `cls`; ""
        for that of the model, or mean.
      dim: Number of the first values of an embedding that are kept; 0 for all.
      max_length: Longer sequences are truncated; 0 for the length of the model, or 512.
      reranker: A cross-encoder that sorts the first documents: a run, or a Hugging Face folder with
        one output for two texts; "" for none.
      rerank_depth: Number of documents that it sorts.
      batch_size: Texts per batch, or pairs of the reranker.
      precision: As `config.model.precision`.
      output: A file for the documents of each query, as JSON lines; "" for none. With one,
        embeddings are kept next to it until it is written, and the same call resumes after an
        interruption.
      progress: Called with the share of the work that is done, None if unknown, and a line of text.

    Returns:
      `ndcg@10`, `mrr@10` and `recall@100`, and the numbers of `queries`, `documents`,
      `empty_documents`, `judgements`, queries without judgements (`unjudged`), which are left out,
      `truncated` texts, and `truncated_pairs` with a reranker.

    Raises:
      UserError: there is no such model, file or column, files of the folder do not match, or an
        option has no effect.
    """
    if rerank_depth < 1:
        raise UserError(f"rerank_depth: got {rerank_depth}, expected an integer >= 1")
    collection = dense_retrieval.read(str(copies.local_copy(data)), split)
    rankings, counts = retrieval_search.rank(
        model,
        collection,
        reranker=reranker,
        rerank_depth=rerank_depth,
        output=output,
        ignore_identical_ids=ignore_identical_ids,
        index=index,
        pooling=pooling,
        dim=dim,
        max_length=max_length,
        batch_size=batch_size,
        precision=precision,
        progress=progress,
        prompts={QUERY: query_prompt, DOCUMENT: document_prompt},
    )
    return score_rankings(rankings, collection.judgements) | collection.counts() | counts


def predictions(task: str, predictions: str, references: str | None = None) -> dict[str, Any]:
    """Scores a file of predictions of any model with the official metrics of a task.

    Args:
      task: A GLUE task, superglue_TASK, xnli, mldoc, squad, squad1, squad2, conll2003, race, swag.
      predictions: The file of predictions.
      references: The released file with the correct answers, for RACE the folder of a split; None
        for CoNLL-2003 if the predictions file has them.

    Returns:
      Metrics in [0, 1], in percent for SQuAD, and counts.

    Raises:
      UserError: the task is unknown, a file is malformed, or the files do not match.
    """
    local = references and str(copies.local_copy(references))
    return official.score(task, local, str(copies.local_copy(predictions)))


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "perplexity": perplexity,
    "choices": choices,
    "blimp": blimp,
    "ewok": ewok,
    "sts": sts,
    "retrieval": retrieval,
    "table": labelled_tables.evaluate,
    "predictions": predictions,
}
"""Functions by the name of their command, `bertjax evaluate NAME`."""
