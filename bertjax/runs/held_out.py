"""Held-out evaluation of a pretraining run, its unigram baseline, and the table of both."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertjax.corpus.reader import Corpus
from bertjax.data.format import ExampleSource
from bertjax.data.pipeline import evaluation_batches
from bertjax.interfaces import Params
from bertjax.pretrainer import SummaryMetric
from bertjax.runtime.interrupt import Interrupt
from bertjax.train.evaluate import HELD_OUT, evaluate
from bertjax.train.sharding import local_rows
from bertjax.train.trainer import Trainer
from bertjax.validation import config as validation_config

_LARGEST_EXPONENT = 700
"""A larger loss would overflow a float64."""


def measure(
    trainer: Trainer,
    params: Params,
    examples: ExampleSource,
    *,
    batch_size: int,
    interrupt: Interrupt,
    limit: int = 0,
) -> dict[str, float]:
    """Held-out losses and metrics, named `HELD_OUT` + OBJECTIVE/METRIC, with fixed masks.

    Objectives that predict tokens also have a perplexity, the exponential of their loss in nats.

    Args:
      trainer: Trainer of the run.
      params: The parameters to evaluate.
      examples: Held-out examples.
      batch_size: Examples per batch.
      interrupt: Stops the evaluation after a batch.
      limit: Maximum number of examples, rounded up to whole batches; 0 for all.

    Raises:
      EvaluationStoppedError: it was interrupted.
    """
    rows = local_rows(batch_size, trainer.mesh)
    with evaluation_batches(examples, batch_size=batch_size, rows=rows) as numbered:
        count = -(-limit // batch_size) if limit else None
        batches = (batch for _, batch in itertools.islice(numbered, count))
        batches = interrupt.stoppable(batches)
        means = evaluate(trainer.eval_step, params, batches, trainer.mesh)
    for name in trainer.pretrainer.token_losses():
        means[f"{name}/perplexity"] = math.exp(min(means[f"{name}/loss"], _LARGEST_EXPONENT))
    return {HELD_OUT + name: value for name, value in means.items()}


def name_by_corpus(corpus: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Names metrics as those of one corpus of a mixture: `HELD_OUT` + CORPUS/OBJECTIVE/METRIC."""
    return {
        f"{HELD_OUT}{corpus}/{name.removeprefix(HELD_OUT)}": value
        for name, value in metrics.items()
    }


def unigram(
    train: Corpus,
    held_out: Corpus,
    special_ids: Sequence[int],
    *,
    unk_id: int | None = None,
    softmax_size: int = 0,
) -> dict[str, float]:
    """Loss, in nats per token, and accuracy of a unigram model on the held-out text.

    Probabilities are the token frequencies of the training text with add-one smoothing, without
    special tokens; the accuracy is that of always predicting the most frequent token.

    Args:
      train: Training split.
      held_out: Held-out split.
      special_ids: Tokens that are never predicted.
      unk_id: The unknown word if it is predicted although it is special.
      softmax_size: Tokens with this id or above count as unknown; 0 for none.
    """
    size = softmax_size or len(train.token_counts)
    content = np.ones(size, bool)
    content[[special for special in special_ids if special != unk_id]] = False

    def counts(corpus: Corpus) -> np.ndarray:
        folded = corpus.token_counts[:size].copy()
        if unk_id is not None:
            folded[unk_id] += corpus.token_counts[size:].sum()
        return folded[content]

    smoothed, observed = counts(train) + 1, counts(held_out)
    loss = -(observed * np.log(smoothed / smoothed.sum())).sum() / observed.sum()
    return {
        "unigram_loss": float(loss),
        "unigram_accuracy": float(observed[smoothed.argmax()] / observed.sum()),
    }


def summary_rows(
    config: ConfigDict, summary: Mapping[str, Any], corpus: str = ""
) -> list[tuple[SummaryMetric, float, float | None]]:
    """The held-out metrics that the objectives of a run summarise: value and baseline of each.

    Args:
      config: Config of the run.
      summary: Content of its `summary.json`.
      corpus: One of a mixture, whose metrics have no baseline; "" for all held-out text.
    """
    prefix = f"{corpus}_" if corpus else ""
    rows = []
    for name, module in validation_config.objective_modules(config).items():
        own = {
            key.removeprefix(f"{prefix}{name}_"): value
            for key, value in summary.items()
            if key.startswith(f"{prefix}{name}_")
        }
        for metric in module.summary:
            if metric.name not in own:
                continue
            baseline = None if corpus else metric.baseline
            if isinstance(baseline, str):
                baseline = summary.get(baseline)
            elif baseline is not None:
                baseline = baseline(own)
            rows.append((metric, own[metric.name], baseline))
    return rows
