"""Answers of `bertjax predict` from the outputs of a sequence head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.metrics.sequences import REGRESSION, SINGLE_LABEL, probabilities


def to_answers(
    problem_type: str, labels: Sequence[str], logits: Float[np.ndarray, "n C"]
) -> list[dict[str, Any]]:
    """Converts the outputs of a head to JSON objects.

    Args:
      problem_type: One of `PROBLEM_TYPES`.
      labels: Names of the classes; none for a regression.
      logits: Logits of the classes, or one score.

    Returns:
      For each example `label` and `probabilities`; `labels`, those of probability 1/2 or more, and
      `probabilities` if it may have several; or `score`.
    """
    if problem_type == REGRESSION:
        return [{"score": float(found[0])} for found in logits]
    found = probabilities(problem_type, logits)
    return [_class_prediction(problem_type, labels, row) for row in found.tolist()]


def _class_prediction(
    problem_type: str, labels: Sequence[str], found: Sequence[float]
) -> dict[str, Any]:
    named = dict(zip(labels, found, strict=True))
    if problem_type == SINGLE_LABEL:
        return {"label": labels[int(np.argmax(found))], "probabilities": named}
    chosen = [label for label, probability in named.items() if probability >= 0.5]
    return {"labels": chosen, "probabilities": named}
