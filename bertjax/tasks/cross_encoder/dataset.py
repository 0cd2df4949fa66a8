"""Dataset of a cross-encoder, from the tables of `tasks/pairs`; every pair is one sequence."""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.io.files import write_output
from bertjax.metrics import classification
from bertjax.tasks import dataset
from bertjax.tasks.cross_encoder.head import SOFTMAX
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest, with_inputs
from bertjax.tasks.pairs import dataset as pairs_dataset
from bertjax.tasks.pairs import splits, tables
from bertjax.tasks.pairs.ranks import check_scores
from bertjax.tasks.pairs.tables import PairExamples, PairLoss

Fields = Mapping[str, Any]

_SCORE_COLUMNS = (*tables.SCORE_COLUMNS, "label")


class DataFields(pairs_dataset.DataFields):
    """The fields of `config.data`, those of pairs. Training batches are counted in examples.

    An example is a pair with a score, or a query with its positive and its hard negatives.
    """


class Dataset:
    """Dataset of a cross-encoder; see `interfaces.Dataset`."""

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits; see `interfaces.Dataset` for the arguments.

        Raises:
          UserError: a file, column or score is missing or invalid, or does not fit the config.
        """
        read = splits.read(data, fields, lambda table: _choose_loss(table, task, fields))
        self.name, self.examples = read.name, read.examples
        for split, own in self.examples.items():
            _check(own, f"{self.name}, {split}", is_test=split == "test")
        train = self.examples["train"]
        count = 1 if read.loss.is_scored else len(train.texts) - 1
        kind = "scored pairs" if read.loss.is_scored else f"{count} passages per query"
        columns = ", ".join(map(repr, train.columns))
        self.findings = (f"columns: {columns} (loss {read.loss.name}, {kind})",)
        self.findings += read.held_out
        if read.loss.is_scored:
            reason = "they are compared with probabilities"
            self.examples["train"], line = splits.rescale(train, 0.0, reason)
            self.findings += (line,)
        self.batches = {}
        for split, own in self.examples.items():
            sampled = spec.subsample(split, own)
            own_spec = dataclasses.replace(spec, batch_size=spec.batch_size * count)
            labels = _labels(sampled) if split == "train" else None
            group = count if split == "train" else 1
            self.batches[split] = own_spec.batches(
                split, own_spec.encode(_columns(sampled)), labels, group
            )
        self.dev = ("dev",)
        self.test = read.test
        self.left_out = dict.fromkeys(self.examples, ())
        self.task_fields = MappingProxyType(
            {"texts": train.columns[:2], "candidates_per_example": count}
        )

    def score(self, split: str, predictions: Float[np.ndarray, " n"]) -> dict[str, float]:
        """Returns `spearman` and `pearson` of scored pairs; else `mrr` and `accuracy`.

        These are the mean reciprocal rank of each positive among itself and the hard negatives of
        all rows of its query, and the share of first ranks; of equal scores the positive is last.
        """
        examples = self.examples[split]
        if examples.scores is not None:
            return {
                "spearman": classification.spearman(predictions, examples.scores),
                "pearson": classification.pearson(predictions, examples.scores),
            }
        if len(examples.texts) < 3:
            return {}
        ranks = _positive_ranks(examples, predictions)
        return {"mrr": float((1 / ranks).mean()), "accuracy": float((ranks == 1).mean())}

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: `spearman` if the dev split has scores, else `mrr`."""
        name = "mrr" if self.examples["dev"].scores is None else "spearman"
        return {"dev/score": values[f"dev/{name}"]}

    def write(self, split: str, predictions: Float[np.ndarray, " n"], folder: pathlib.Path) -> None:
        """Writes `SPLIT.jsonl`: of each pair the texts, `score`, a logit, and the true score."""
        examples = self.examples[split]
        queries, passages = _columns(examples)
        true = _labels(examples).tolist()
        rows = []
        for query, passage, score, label in zip(
            queries, passages, predictions.tolist(), true, strict=True
        ):
            row = {examples.columns[0]: query, examples.columns[1]: passage, "score": score}
            if examples.scores is not None or len(examples.texts) > 2:
                row["true"] = label
            rows.append(json.dumps(row, ensure_ascii=False))
        write_output(folder / f"{split}.jsonl", "\n".join(rows) + "\n")


def _choose_loss(table: Table, task: Fields, fields: Fields) -> PairLoss:
    """Scored pairs if there is a column of scores, unless the config names one of negatives."""
    name = task["loss_type"]
    if name != SOFTMAX and not fields["label"] and not fields["negative"]:
        tables.check_choice(
            table, fields, _SCORE_COLUMNS, "choose --label COLUMN or --config.data.negative=COLUMN"
        )
    is_scored = (
        name != SOFTMAX
        and not (fields["negative"] and not fields["label"])
        and tables.has_scores(table, fields, _SCORE_COLUMNS)
    )
    return PairLoss(name, is_scored, SOFTMAX)


def _check(examples: PairExamples, where: str, *, is_test: bool) -> None:
    """Raises `UserError` if no pair is negative."""
    if examples.scores is None and len(examples.texts) < 3 and not is_test:
        raise UserError(
            f"{where}: got the columns {', '.join(examples.columns)}, expected hard negatives "
            "(negative, negative_1, negative_2 ..., or lists negatives) or scores of the pairs, as "
            "a cross-encoder has no negatives in the batch; add a column, or choose it with "
            "--config.data.negative=COLUMN or --label COLUMN"
        )


def _columns(examples: PairExamples) -> tuple[list[str], list[str]]:
    """Queries and passages: the positive of an example, its negatives, and so on."""
    anchors, *candidates = examples.texts
    rows = list(zip(anchors, zip(*candidates, strict=True), strict=True))
    return [anchor for anchor, own in rows for _ in own], [text for _, own in rows for text in own]


def _labels(examples: PairExamples) -> Float[np.ndarray, " n"]:
    """The score of each sequence; without scores 1 for the positives and 0 for the others."""
    if examples.scores is not None:
        return examples.scores
    labels = np.zeros((len(examples), len(examples.texts) - 1), np.float32)
    labels[:, 0] = 1
    return labels.reshape(-1)


def _positive_ranks(
    examples: PairExamples, scores: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " rows"]:
    """Ranks the positive of each row, from 1, among the hard negatives of its query."""
    check_scores(scores)
    scores_NC = scores.reshape(len(examples), -1)
    negatives: dict[str, dict[str, float]] = collections.defaultdict(dict)
    anchors, positives, *columns = examples.texts
    for row, anchor in enumerate(anchors):
        own = zip(columns, scores_NC[row, 1:].tolist(), strict=True)
        negatives[anchor] |= {column[row]: score for column, score in own}
    for anchor, positive in zip(anchors, positives, strict=True):
        negatives[anchor].pop(positive, None)
    found = zip(anchors, scores_NC[:, 0].tolist(), strict=True)
    return np.array([1 + sum(s >= own for s in negatives[a].values()) for a, own in found])


OUTPUT = "predict"
"""The method of `tasks/cross_encoder/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return tuple(task["texts"])


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: one pair per line, tab-separated or a JSON object of the two columns.

    Answers have the texts and `score`, a logit, and `"truncated": true` where a pair was too long.

    Raises:
      UserError: a line has another number of fields, or other keys.
    """
    names = input_fields(task)
    rows = [dataset.parse_fields(line, names) for line in lines]
    encoded = spec.encode(tuple([row[name] for row in rows] for name in names))

    def answers(scores: Float[np.ndarray, " n"]) -> list[dict[str, Any]]:
        return with_inputs(rows, [{"score": score} for score in scores.tolist()], encoded)

    return PredictionRequest(spec.batches("predict", encoded, None), answers)
