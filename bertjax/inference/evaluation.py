"""Evaluate models without training: language models, embeddings, and files of predictions."""

import json
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
    language_model,
    minimal_pairs,
    multiple_choice,
    reranking,
    retrieval_search,
    sentence_scores,
    similarity,
)
from bertjax.inference import perplexity as windows
from bertjax.io import copies, storage
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
      kind: `perplexity`, `choices`, `blimp`, `sts`, `retrieval` or `predictions`, the functions of
        this module.
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


def choices(
    model: str,
    questions: str,
    *,
    num_fewshot: int = 0,
    fewshot_input: str = "",
    seed: int = 0,
    within_word: bool = False,
    batch_size: int = 32,
    precision: str = "auto",
    output: str = "",
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> dict[str, float]:
    """Answers multiple-choice questions by the likelihood of the choices, without training.

    Args:
      model: A causal or masked language model: a run, or a Hugging Face folder.
      questions: A file of JSON lines with `question`, `choices` and `answer`.
      num_fewshot: Number of answered examples before each question.
      fewshot_input: File of the answered examples; "" for `questions`.
      seed: Seed of sampling the examples.
      within_word: Whether a masked model predicts each token without the later ones of its word.
      batch_size: Sequences per batch; a masked model has one for each token of a choice.
      precision: As `config.model.precision`.
      output: A file for the log probabilities of all choices, as JSON lines; "" for none.
      progress: Called with the share of the work that is done, and a line of text.

    Returns:
      `accuracy` by log probability, `accuracy_per_byte` by log probability per byte, `questions`
      and `num_fewshot`.

    Raises:
      UserError: there is no such model or file, or a question is malformed or too long.
    """
    if output:
        storage.check_file(storage.to_path(output))
    items = multiple_choice.read_questions(questions)
    examples = multiple_choice.read_questions(fewshot_input) if fewshot_input else items
    prompts = multiple_choice.sample_shots(items, examples, num_fewshot, seed)
    run = run_cache.find_run(model)
    scorer = sentence_scores.load(run, precision, within_word=within_word)
    scores = multiple_choice.score_choices(
        scorer, items, prompts, batch_size=batch_size, progress=progress
    )
    _write_scores(output, scores)
    found = multiple_choice.compute_accuracies(items, scores)
    return found | {"questions": len(items), "num_fewshot": num_fewshot}


def blimp(
    model: str,
    pairs: str,
    *,
    within_word: bool = False,
    batch_size: int = 128,
    precision: str = "auto",
    output: str = "",
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> dict[str, float]:
    """Compares the likelihood of the sentences of minimal pairs, as in BLiMP, without training.

    Args:
      model: A causal or masked language model: a run, or a Hugging Face folder.
      pairs: A file of JSON lines with `sentence_good`, `sentence_bad` and `UID`.
      within_word: Whether a masked model predicts each token without the later ones of its word.
      batch_size: Sequences per batch.
      precision: As `config.model.precision`.
      output: A file for the log probabilities of both sentences, as JSON lines; "" for none.
      progress: Called with the share of the work that is done, and a line of text.

    Returns:
      The accuracy of each paradigm by name, `accuracy`, their mean, and `pairs`.

    Raises:
      UserError: there is no such model or file, or a pair is malformed or too long.
    """
    if output:
        storage.check_file(storage.to_path(output))
    read = minimal_pairs.read(pairs)
    run = run_cache.find_run(model)
    scorer = sentence_scores.load(run, precision, within_word=within_word)
    scores = minimal_pairs.score(scorer, read, batch_size=batch_size, progress=progress)
    _write_scores(output, scores)
    return minimal_pairs.accuracies(read, scores) | {"pairs": len(read)}


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
    max_length: int = 0,
    batch_size: int = 64,
    precision: str = "auto",
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> dict[str, float]:
    """Compares the cosines of sentence embeddings with human scores, as in STS, without training.

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
      max_length: Longer sequences are truncated; 0 for the length of the model, or 512.
      batch_size: Sentences per batch.
      precision: As `config.model.precision`.
      progress: Called with the share of the work that is done, and a line of text.

    Returns:
      `pearson_cosine`, `spearman_cosine`, and the numbers of `pairs` and of `truncated` sentences.

    Raises:
      UserError: there is no such model, data or column, or a score is not a number.
    """
    columns = {"text": text, "text_pair": text_pair, "label": label}
    examples = similarity.read(str(copies.local_copy(data)), columns)
    embedder = embeddings.load(
        run_cache.find_run(model),
        pooling=pooling,
        max_length=max_length,
        batch_size=batch_size,
        precision=precision,
        progress=progress,
    )
    text_before = find_prompt(embedder.settings, prompt, prompt_name)
    cosines = similarity.cosines(embedder, examples, text_before)
    counts = {"pairs": len(examples), "truncated": embedder.num_truncated}
    return similarity.correlations(cosines, np.asarray(examples.labels)) | counts


def retrieval(
    model: str,
    data: str,
    *,
    split: str = "test",
    index: str = "",
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    pooling: str = "",
    max_length: int = 0,
    reranker: str = "",
    rerank_depth: int = DEPTH,
    batch_size: int = 64,
    precision: str = "auto",
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> dict[str, float]:
    """Searches documents, as in BEIR: by embeddings or BM25, optionally with a reranker.

    Args:
      model: A run, or a Hugging Face folder, whose embeddings are compared by their cosine; a run
        of the config `colbert`, whose token vectors are compared; or "bm25", which compares words.
      data: A folder with `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`.
      split: Name of the judgements.
      index: Index of FAISS, such as `HNSW32`, that is searched for the nearest embeddings; "" for
        exact search.
      query_prompt: Put before every query; None for that of the model, if any.
      document_prompt: Put before every document, likewise.
      pooling: `mean` over the tokens of a sequence, special ones included, `weighted` or `cls`; ""
        for that of the model, or mean.
      max_length: Longer sequences are truncated; 0 for the length of the model, or 512.
      reranker: A cross-encoder that sorts the first documents: a run, or a Hugging Face folder with
        one output for two texts; "" for none.
      rerank_depth: Number of documents that it sorts.
      batch_size: Texts per batch, or pairs of the reranker.
      precision: As `config.model.precision`.
      progress: Called with the share of the work that is done, and a line of text.

    Returns:
      `ndcg@10`, `mrr@10` and `recall@100`, and the numbers of `queries`, `documents`, `judgements`,
      `truncated` texts, `truncated_pairs` with a reranker, and queries without judgements
      (`unjudged`), which are left out.

    Raises:
      UserError: there is no such model, file or column, files of the folder do not match, or an
        option has no effect.
    """
    if rerank_depth < 1:
        raise UserError(f"rerank_depth: got {rerank_depth}, expected an integer >= 1")
    collection = dense_retrieval.read(str(copies.local_copy(data)), split)
    # Loaded first, so that a wrong model is found before a long search.
    sorter = None
    if reranker:
        sorter = reranking.load(
            run_cache.find_run(reranker), batch_size=batch_size, precision=precision
        )
    depth = max(DEPTH, rerank_depth if sorter else 0)
    rankings, num_truncated = retrieval_search.search(
        model,
        collection,
        depth,
        index=index,
        pooling=pooling,
        max_length=max_length,
        batch_size=batch_size,
        precision=precision,
        progress=progress,
        prompts={QUERY: query_prompt, DOCUMENT: document_prompt},
    )
    counts = {
        "queries": len(collection.queries),
        "documents": len(collection.documents),
        "judgements": sum(map(len, collection.judgements.values())),
        "truncated": num_truncated,
        "unjudged": collection.num_unjudged,
    }
    if sorter:
        rankings, counts["truncated_pairs"] = reranking.rerank(
            sorter, rankings, collection, rerank_depth, progress
        )
    return score_rankings(rankings, collection.judgements) | counts


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


def _write_scores(output: str, scores: Sequence[Sequence[float]]) -> None:
    """Writes the log probabilities of each question or pair as JSON lines; "" for no file."""
    if output:
        rows = [json.dumps({"log_probabilities": row}) for row in scores]
        with copies.upload_file(output) as file:
            file.write_text("\n".join([*rows, ""]), encoding="utf-8")


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "perplexity": perplexity,
    "choices": choices,
    "blimp": blimp,
    "sts": sts,
    "retrieval": retrieval,
    "predictions": predictions,
}
"""Functions by the name of their command, `bertjax evaluate NAME`."""
