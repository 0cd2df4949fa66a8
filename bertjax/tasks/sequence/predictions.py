"""Predictions of a sequence head: answers of `bertjax predict`, and the files of a split.

SPLIT.jsonl has texts, label and prediction of every example; SPLIT_classes.txt precision, recall,
F1 and number of examples of each class, and the pairs of classes that are confused most often;
SPLIT_confusion.tsv the number of examples of each class (row) that are predicted as each class
(column), for up to 500 classes; SPLIT_confusion.png the same as a picture, with matplotlib.
"""

import json
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num

from bertjax.errors import UserError
from bertjax.io.files import write_output
from bertjax.metrics import sequences as metrics
from bertjax.metrics.sequences import MULTI_LABEL, REGRESSION, SINGLE_LABEL, probabilities
from bertjax.tasks.dataset import EncodingSpec, PredictionRequest, with_inputs
from bertjax.tasks.sequence.examples import SequenceExamples
from bertjax.tasks.sequences import Pairs

_MAX_CONFUSIONS = 20
_MAX_MATRIX = 500
"""Number of classes up to which a confusion matrix is written."""
_PIXELS_PER_CLASS, _MAX_INCHES = 0.22, 40


def write_report(
    folder: pathlib.Path,
    split: str,
    *,
    examples: SequenceExamples,
    texts: Sequence[str],
    logits: Num[np.ndarray, "n C"],
    problem_type: str,
    labels: Sequence[str],
) -> None:
    """Writes the files of a split; only the first if it has no labels or is a regression.

    Args:
      folder: Folder of the files; created if absent.
      split: Its name.
      examples: Examples of the split.
      texts: Names of the columns of the texts.
      logits: Logits of the classes, or the scores.
      problem_type: One of `metrics.sequences.PROBLEM_TYPES`.
      labels: Names of the classes.

    Raises:
      UserError: a file cannot be written.
    """
    answers = to_answers(problem_type, labels, logits)
    rows = []
    for number, answer in enumerate(answers):
        row = {name: column[number] for name, column in zip(texts, examples.texts, strict=True)}
        if examples.labels is not None:
            row |= {"true": _true(examples.labels[number], problem_type, labels)}
        if "label" in answer:
            # The probabilities of all of many classes would be most of the file.
            answer = {
                "label": answer["label"],
                "probability": max(answer["probabilities"].values()),
            }
        rows.append(json.dumps(row | answer, ensure_ascii=False))
    write_output(folder / f"{split}.jsonl", "\n".join(rows) + "\n")
    if examples.labels is not None and problem_type != REGRESSION:
        write_classes(folder, split, logits, examples.labels, labels)


def write_classes(
    folder: pathlib.Path,
    split: str,
    logits: Num[np.ndarray, "n C"],
    references: Num[np.ndarray, "n *more"],
    labels: Sequence[str],
) -> None:
    """Writes the table of the classes and, for one label per example, the confusion matrix.

    Args:
      folder: Folder of the files; created if absent.
      split: Name of the split.
      logits: Logits of the classes.
      references: Class indices, or 0 or 1 for each class.
      labels: Names of the classes.

    Raises:
      UserError: a file cannot be written.
    """
    lines = class_table(logits, references, labels)
    if references.ndim == 1 and len(labels) <= _MAX_MATRIX:
        counts = metrics.confusion(logits, references)
        lines += ["", *confusions(counts, labels)]
        header = "\t".join(["true \\ predicted", *labels])
        matrix = [
            "\t".join([n, *map(str, row)]) for n, row in zip(labels, counts.tolist(), strict=True)
        ]
        write_output(folder / f"{split}_confusion.tsv", "\n".join([header, *matrix]) + "\n")
        plot_confusion(folder / f"{split}_confusion.png", counts, labels)
    write_output(folder / f"{split}_classes.txt", "\n".join(lines) + "\n")


def _true(label: Num[np.ndarray, "*more"], problem_type: str, labels: Sequence[str]):
    if problem_type == REGRESSION:
        return float(label)
    if problem_type == MULTI_LABEL:
        return [name for name, is_on in zip(labels, label.tolist(), strict=True) if is_on]
    return labels[int(label)]


def class_table(
    logits: Num[np.ndarray, "n C"], references: Num[np.ndarray, "n *more"], labels: Sequence[str]
) -> list[str]:
    """Returns the lines of a table of the classes, the lowest F1 first."""
    measures = metrics.per_class(logits, references)
    rows = [("class", "precision", "recall", "F1", "examples")]
    for number in np.argsort(measures[2], kind="stable"):
        precision, recall, f1, support = (float(measure[number]) for measure in measures)
        values = (f"{precision:.4f}", f"{recall:.4f}", f"{f1:.4f}", f"{support:,.0f}")
        rows.append((labels[number], *values))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def confusions(counts: Int[np.ndarray, "C C"], labels: Sequence[str]) -> list[str]:
    """Returns lines with the pairs of classes that are confused most often."""
    errors = counts * ~np.eye(len(counts), dtype=bool)
    order = np.argsort(-errors, axis=None, kind="stable")[:_MAX_CONFUSIONS]
    pairs = [divmod(int(place), len(counts)) for place in order if errors.flat[place]]
    lines = [
        f"{errors[true, made]:,} of {counts[true].sum():,}  {labels[true]} -> {labels[made]}"
        for true, made in pairs
    ]
    return ["confused most often (true -> predicted):", *(lines or ["nothing"])]


def plot_confusion(
    path: pathlib.Path, counts: Int[np.ndarray, "C C"], labels: Sequence[str]
) -> None:
    """Draws the share of each class's examples by predicted class; nothing without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    inches = min(3 + _PIXELS_PER_CLASS * len(labels), _MAX_INCHES)
    figure = Figure(figsize=(inches, inches), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places = range(len(labels))
    # A dollar sign would begin a formula.
    names = [label.replace("$", r"\$") for label in labels]
    axes.set_xticks(places, names, rotation=90, fontsize=7)
    axes.set_yticks(places, names, fontsize=7)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    figure.colorbar(image, shrink=0.5, label="share of the class")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for every character that the font does not have
            figure.savefig(path, dpi=100)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; check the folder") from None


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


def prediction_request(
    given: Sequence[Mapping[str, Any]],
    encoded: Pairs,
    problem_type: str,
    labels: Sequence[str],
    spec: EncodingSpec,
) -> PredictionRequest:
    """Returns the request for user inputs, whose answers are the inputs with those of `to_answers`.

    Args:
      given: The inputs.
      encoded: Their sequences.
      problem_type: One of `PROBLEM_TYPES`.
      labels: Names of the classes; none for a regression.
      spec: The encoding.
    """

    def answers(logits: Float[np.ndarray, "n C"]) -> list[dict[str, Any]]:
        return with_inputs(given, to_answers(problem_type, labels, logits), encoded)

    return PredictionRequest(spec.batches("predict", encoded, None), answers)


def _class_prediction(
    problem_type: str, labels: Sequence[str], found: Sequence[float]
) -> dict[str, Any]:
    named = dict(zip(labels, found, strict=True))
    if problem_type == SINGLE_LABEL:
        return {"label": labels[int(np.argmax(found))], "probabilities": named}
    chosen = [label for label, probability in named.items() if probability >= 0.5]
    return {"labels": chosen, "probabilities": named}
