"""Evaluate language models by the likelihood of texts: choices, minimal pairs, world knowledge."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bertjax import pretrained
from bertjax.huggingface import run_cache
from bertjax.inference import ewok as world_knowledge
from bertjax.inference import minimal_pairs, multiple_choice, score_log, sentence_scores
from bertjax.inference.score_log import ScoreLog
from bertjax.inference.sentence_scores import Scorer
from bertjax.io import copies, storage
from bertjax.io.files import write_output


@contextlib.contextmanager
def _open(
    model: str, output: str, texts: Sequence[Any], *, precision: str, within_word: bool, **options
) -> Iterator[tuple[Scorer, ScoreLog | None]]:
    """A context manager that yields the scorer of texts and the log of an output file."""
    if output:
        storage.check_file(storage.to_path(output))
    run = pretrained.load(run_cache.find_run(model))
    scorer = sentence_scores.load(run, precision, within_word=within_word)
    options |= {"precision": precision, "within_word": within_word}
    with score_log.open_log(output, run, texts, **options) as log:
        yield scorer, log


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
        With one, finished scores are kept next to it, and the same call resumes after an
        interruption.
      progress: Called with the share of the work that is done, and a line of text.

    Returns:
      `accuracy` by log probability, `accuracy_per_byte` by log probability per byte, `questions`
      and `num_fewshot`.

    Raises:
      UserError: there is no such model or file, or a question is malformed or too long.
    """
    items = multiple_choice.read_questions(questions)
    examples = multiple_choice.read_questions(fewshot_input) if fewshot_input else items
    prompts = multiple_choice.sample_shots(items, examples, num_fewshot, seed)
    texts = [(prompt, each.text, each.choices) for prompt, each in zip(prompts, items, strict=True)]
    options = {"within_word": within_word, "batch_size": batch_size, "precision": precision}
    with _open(model, output, texts, **options) as (scorer, log):
        scores = multiple_choice.score_choices(
            scorer, items, prompts, batch_size=batch_size, progress=progress, log=log
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
        With one, finished scores are kept next to it, and the same call resumes after an
        interruption.
      progress: Called with the share of the work that is done, and a line of text.

    Returns:
      The accuracy of each paradigm by name, `accuracy`, their mean, and `pairs`.

    Raises:
      UserError: there is no such model or file, or a pair is malformed or too long.
    """
    read = minimal_pairs.read(pairs)
    texts = [(each.good, each.bad) for each in read]
    options = {"within_word": within_word, "batch_size": batch_size, "precision": precision}
    with _open(model, output, texts, **options) as (scorer, log):
        scores = minimal_pairs.score(
            scorer, read, batch_size=batch_size, progress=progress, log=log
        )
        _write_scores(output, scores)
    return minimal_pairs.accuracies(read, scores) | {"pairs": len(read)}


def ewok(
    model: str,
    items: Sequence[str],
    *,
    within_word: bool = False,
    batch_size: int = 128,
    precision: str = "auto",
    output: str = "",
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> dict[str, float]:
    """Compares the likelihood of targets after two contexts, as in EWoK, without training.

    Args:
      model: A causal or masked language model: a run, or a Hugging Face folder.
      items: Tables with `Domain`, `Context1`, `Context2`, `Target1` and `Target2`.
      within_word: Whether a masked model predicts each token without the later ones of its word.
      batch_size: Sequences per batch; a masked model has one for each token of a target.
      precision: As `config.model.precision`.
      output: A file for the log probabilities of both targets after each context, as JSON lines;
        "" for none. With one, finished scores are kept next to it, and the same call resumes after
        an interruption.
      progress: Called with the share of the work that is done, and a line of text.

    Returns:
      The accuracy of each domain by name, `accuracy` over all items, which publications report,
      `mean_of_domains`, and `items`.

    Raises:
      UserError: there is no such model or file, or an item is malformed or too long.
    """
    read = world_knowledge.read([str(copies.local_copy(path)) for path in items])
    texts = [(each.contexts, each.targets) for each in read]
    options = {"within_word": within_word, "batch_size": batch_size, "precision": precision}
    with _open(model, output, texts, **options) as (scorer, log):
        scores = world_knowledge.score(
            scorer, read, batch_size=batch_size, progress=progress, log=log
        )
        _write_scores(output, scores)
    return world_knowledge.accuracies(read, scores) | {"items": len(read)}


def _write_scores(output: str, scores: Sequence[Any]) -> None:
    """Writes the log probabilities of each question, pair or item as JSON lines; "" for no file."""
    if output:
        rows = [json.dumps({"log_probabilities": row}) for row in scores]
        with copies.upload_file(output) as file:
            write_output(file, "\n".join([*rows, ""]))
