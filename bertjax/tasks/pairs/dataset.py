"""Dataset of text pairs for embeddings; every text is one sequence."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bertjax.constraints import AnyText, OpenShare, Seed
from bertjax.corpus.format import Table
from bertjax.io.files import write_output
from bertjax.metrics import classification
from bertjax.tasks import dataset
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.pairs import splits, tables
from bertjax.tasks.pairs.head import CONTRASTIVE, COSENT, COSINE, KL, MARGIN_MSE, Task
from bertjax.tasks.pairs.ranks import positive_ranks
from bertjax.tasks.pairs.tables import PairExamples, PairLoss
from bertjax.tasks.sequences import Pairs

Fields = Mapping[str, Any]
_DOT = "dot"


class DataFields(dataset.DataFields):
    """The fields of `config.data`. Training batches are counted in pairs, evaluation in texts.

    Attributes:
      text: Column of the first text, the anchor; "" for one with a common name.
      text_pair: Column of the second text, the positive; "" for one with a common name. Without a
        second column each text is its own positive (unsupervised SimCSE).
      negative: Column of a hard negative, or of a list of them, for contrastive, margin_mse and kl;
        NAME also stands for NAME_1, NAME_2 ...; "" for `negative`, if any.
      label: Column of the score; "" for `score` or `similarity`, if any; for margin_mse and kl that
        of a teacher's scores, "" for `scores`.
      validation_fraction: Share of the training pairs that becomes the dev split, if there is no
        dev file; None for 0.1. The pairs of an anchor stay together.
      split_seed: Seed of that choice; None for 0.
    """

    text: AnyText
    text_pair: AnyText
    negative: AnyText
    label: AnyText
    validation_fraction: OpenShare | None
    split_seed: Seed | None


class Dataset:
    """Dataset of text pairs; see `interfaces.Dataset`."""

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits; see `interfaces.Dataset` for the arguments.

        Raises:
          UserError: a file, column or score is missing or invalid, or does not fit the config.
        """
        read = splits.read(data, fields, lambda table: _choose_loss(table, task, fields))
        read.check_ranking()
        self.name, self.loss_type, self.examples = read.name, read.loss.name, read.examples
        train = self.examples["train"]
        self.findings = (_describe(self.examples, self.loss_type), *read.held_out)
        if self.loss_type == COSINE:
            reason = "they are compared with cosines"
            self.examples["train"], line = splits.rescale(train, -1.0, reason)
            self.findings += (line,)
        self._task, self._dims = task, tuple(task.get("matryoshka_dims", ()))
        self._similarity = _similarity_name(self.loss_type)
        self.batches = {name: self._batches(name, own, spec) for name, own in self.examples.items()}
        self.dev = ("dev",)
        self.test = read.test
        self.left_out = dict.fromkeys(self.examples, ())
        self.task_fields = MappingProxyType(
            {
                "loss_type": self.loss_type,
                "columns": self.examples["dev"].columns[:2],
                "texts_per_example": len(train.texts),
            }
        )

    def _batches(self, name: str, examples: PairExamples, spec: EncodingSpec):
        """Batches of texts; those of a training example stay together."""
        if name != "train":
            return spec.batches(name, self._encode(examples, spec), None)
        examples = spec.subsample(name, examples)
        group = len(examples.texts)
        if self.loss_type == CONTRASTIVE:
            labels = examples.text_ids.reshape(-1)
        elif examples.teacher_scores is not None:
            labels = np.pad(examples.teacher_scores, ((0, 0), (1, 0))).reshape(-1)
        else:
            labels = np.repeat(examples.scores, group)
        spec = dataclasses.replace(spec, batch_size=spec.batch_size * group)
        return spec.batches(name, self._encode(examples, spec), labels, group)

    def _encode(self, examples: PairExamples, spec: EncodingSpec) -> Pairs:
        return spec.encode((_with_prompts(examples.flat_texts, len(examples.texts), self._task),))

    def score(self, split: str, predictions: Float[np.ndarray, "n D"]) -> dict[str, float]:
        """Returns the metrics of a split, for each width of `matryoshka_dims` with a suffix.

        With scores `spearman_cosine` and `pearson_cosine`, or `spearman_dot` and `pearson_dot` for
        a loss of dot products; else `mrr`, the mean reciprocal rank of the positive among all texts
        of the split, and `accuracy`, the share of first ranks.
        """
        examples, values = self.examples[split], {}
        if examples.scores is None and self.loss_type in (COSENT, COSINE):
            return {}
        for width in (predictions.shape[1], *self._dims):
            suffix = "" if width == predictions.shape[1] else f"_{width}"
            found = self._score(examples, predictions[:, :width])
            values |= {f"{name}{suffix}": value for name, value in found.items()}
        return values

    def _score(
        self, examples: PairExamples, predictions: Float[np.ndarray, "n D"]
    ) -> dict[str, float]:
        vectors = _group_by_example(examples, predictions)
        if examples.scores is not None:
            found, name = _similarities(vectors, self._similarity), self._similarity
            return {
                f"spearman_{name}": classification.spearman(found, examples.scores),
                f"pearson_{name}": classification.pearson(found, examples.scores),
            }
        ranks = self._ranks(examples, vectors)
        return {"mrr": float((1 / ranks).mean()), "accuracy": float((ranks == 1).mean())}

    def _ranks(
        self, examples: PairExamples, vectors: Float[np.ndarray, "n G D"]
    ) -> Int[np.ndarray, " n"]:
        normalize = self._similarity != _DOT
        return positive_ranks(vectors, examples.text_ids, normalize=normalize)

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: Spearman's correlation if the dev split has scores, else `mrr`."""
        name = "mrr" if self.examples["dev"].scores is None else f"spearman_{self._similarity}"
        return {"dev/score": values[f"dev/{name}"]}

    def write(
        self, split: str, predictions: Float[np.ndarray, "n D"], folder: pathlib.Path
    ) -> None:
        """Writes `SPLIT.jsonl`: of each pair the texts, similarity, and the score or the rank."""
        examples = self.examples[split]
        vectors = _group_by_example(examples, predictions)
        found = {self._similarity: _similarities(vectors, self._similarity).tolist()}
        if examples.scores is not None:
            found["true"] = examples.scores.tolist()
        elif self.loss_type not in (COSENT, COSINE):
            found["rank"] = self._ranks(examples, vectors).tolist()
        columns = [*zip(examples.columns, examples.texts, strict=True), *found.items()]
        rows = zip(*(values for _, values in columns), strict=True)
        names = [name for name, _ in columns]
        lines = [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows]
        write_output(folder / f"{split}.jsonl", "\n".join(lines) + "\n")


def _choose_loss(table: Table, task: Fields, fields: Fields) -> PairLoss:
    """The loss of the config, or the one that the training table has columns for."""
    name = task.get("loss_type")
    if not name:
        tables.check_choice(
            table,
            fields,
            (*tables.SCORE_COLUMNS, "scores"),
            "set --config.task.loss_type=margin_mse or kl (scores of a teacher), contrastive "
            "(without the scores), or cosent or cosine (without the negatives)",
        )
        name = COSENT if tables.has_scores(table, fields) else CONTRASTIVE
    return PairLoss(
        name,
        is_scored=name in (COSENT, COSINE),
        unscored=CONTRASTIVE,
        is_distilled=name in (MARGIN_MSE, KL),
        takes_margins=name == MARGIN_MSE,
    )


def _describe(read: Mapping[str, PairExamples], loss_type: str) -> str:
    train, dev = read["train"], read["dev"]
    columns = ", ".join(map(repr, dict.fromkeys(train.columns)))
    same = "; each text is its own positive" if len(set(train.columns)) < 2 else ""
    metric = "ranks of the positives" if dev.scores is None else "scores of the pairs"
    return f"columns: {columns} (loss {loss_type}{same}); dev is evaluated by {metric}"


def _with_prompts(texts: Sequence[str], group: int, task: Fields) -> list[str]:
    """Puts the prompts before texts, of which the first of each group is the query."""
    query, document = task.get("query_prompt", ""), task.get("document_prompt", "")
    return [(document if n % group else query) + text for n, text in enumerate(texts)]


def _group_by_example(
    examples: PairExamples, predictions: np.ndarray
) -> Float[np.ndarray, "n G D"]:
    return predictions.reshape(len(examples), -1, predictions.shape[1])


def _similarity_name(loss_type: str) -> str:
    """The similarity of a loss, as in `huggingface/sentence_transformers.py`."""
    return _DOT if loss_type in Task.dot_product_losses else "cosine"


def _similarities(vectors: Float[np.ndarray, "n G D"], name: str) -> Float[np.ndarray, " n"]:
    """Cosine or dot product of the first two vectors of each row."""
    vectors = vectors.astype(np.float64)
    products = (vectors[:, 0] * vectors[:, 1]).sum(axis=-1)
    if name == _DOT:
        return products
    norms = np.maximum(np.linalg.norm(vectors, axis=-1), np.finfo(np.float32).tiny)
    return products / (norms[:, 0] * norms[:, 1])


OUTPUT = "predict"
"""The method of `tasks/pairs/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return tuple(task["columns"])


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: one pair per line, tab-separated or a JSON object of the two columns.

    Answers have the texts and `cosine`, or `dot` for a loss of dot products, and
    `"truncated": true` where a text was too long.

    Raises:
      UserError: a line has another number of fields, or other keys.
    """
    names = input_fields(task)
    rows = [dataset.parse_fields(line, names) for line in lines]
    texts = [row[name] for row in rows for name in names]
    encoded = spec.encode((_with_prompts(texts, 2, task),))
    truncated = encoded.truncated.reshape(len(rows), -1).any(axis=1)

    def answers(embeddings: Float[np.ndarray, "n D"]) -> list[dict[str, Any]]:
        name = _similarity_name(task["loss_type"])
        found = _similarities(embeddings.reshape(len(rows), 2, -1), name).tolist()
        return [
            {**row, name: value, **({"truncated": True} if cut else {})}
            for row, value, cut in zip(rows, found, truncated, strict=True)
        ]

    return PredictionRequest(spec.batches("predict", encoded, None), answers)
