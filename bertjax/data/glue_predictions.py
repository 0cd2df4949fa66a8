"""Predictions as GLUE's evaluation server wants them: a file a test set, two columns, a header."""

import pathlib

import numpy as np
from jaxtyping import Num

from bertjax.data.glue_table import HIGHEST_SCORE, GlueTask


def write(
    path: pathlib.Path, task: GlueTask, indices: list[str], predictions: Num[np.ndarray, " n"]
) -> None:
    """Writes predicted classes as the server spells them, scores cut to 0..5 with 3 decimals."""
    if len(indices) != len(predictions):
        raise ValueError(f"{len(predictions)} predictions for {len(indices)} examples")
    if task.labels:
        spelled = [task.labels[value] for value in predictions.tolist()]
    else:
        spelled = [f"{value:.3f}" for value in np.clip(predictions, 0.0, HIGHEST_SCORE).tolist()]
    lines = ["index\tprediction", *map("\t".join, zip(indices, spelled, strict=True))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
