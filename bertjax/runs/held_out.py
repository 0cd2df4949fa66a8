"""Held-out evaluation of a pretraining run, and its unigram baseline."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from bertjax.corpus.reader import Corpus
from bertjax.data.pipeline import AnyExamples, evaluation_batches
from bertjax.interfaces import Params
from bertjax.train.evaluate import HELD_OUT, evaluate
from bertjax.train.sharding import local_rows
from bertjax.train.trainer import Trainer

_LARGEST_EXPONENT = 700
"""Beyond it a float64 overflows; no model is that bad for long."""


def measure(
    trainer: Trainer, params: Params, examples: AnyExamples, *, batch_size: int, limit: int = 0
) -> dict[str, float]:
    """Losses and metrics, with the same masks at every call; each name begins with `HELD_OUT`.

    The losses of predicted tokens, in nats, have their perplexity beside them.

    Args:
      trainer: Of the run.
      params: What is measured.
      examples: Held out.
      batch_size: Examples at a time.
      limit: Examples that are enough; 0 for all.
    """
    rows = local_rows(batch_size, trainer.mesh)
    with evaluation_batches(examples, batch_size=batch_size, rows=rows) as numbered:
        count = -(-limit // batch_size) if limit else None
        batches = (batch for _, batch in itertools.islice(numbered, count))
        means = evaluate(trainer.eval_step, params, batches, trainer.mesh)
    for name in trainer.pretrainer.token_losses():
        means[f"{name}/perplexity"] = math.exp(min(means[f"{name}/loss"], _LARGEST_EXPONENT))
    return {HELD_OUT + name: value for name, value in means.items()}


def unigram(
    train: Corpus,
    held_out: Corpus,
    special_ids: Sequence[int],
    *,
    unk_id: int | None = None,
    softmax_size: int = 0,
) -> dict[str, float]:
    """What a model that knows only how frequent tokens are gets on the held-out text.

    Frequencies are those of the training text, with one count added to each token; special tokens
    are left out. The loss is in nats a token, the accuracy that of always saying the commonest.

    Args:
      train: What frequencies are of.
      held_out: What is said.
      special_ids: Tokens that are never predicted.
      unk_id: The unknown word, where that is predicted all the same.
      softmax_size: Tokens from this one on are predicted as unknown; 0: none.
    """
    size = softmax_size or len(train.token_counts)
    content = np.ones(size, bool)
    content[[special for special in special_ids if special != unk_id]] = False

    def counts(corpus: Corpus) -> np.ndarray:
        folded = corpus.token_counts[:size].copy()
        if unk_id is not None:
            folded[unk_id] += corpus.token_counts[size:].sum()
        return folded[content]

    seen, wanted = counts(train) + 1, counts(held_out)
    loss = -(wanted * np.log(seen / seen.sum())).sum() / wanted.sum()
    return {
        "unigram_loss": float(loss),
        "unigram_accuracy": float(wanted[seen.argmax()] / wanted.sum()),
    }
