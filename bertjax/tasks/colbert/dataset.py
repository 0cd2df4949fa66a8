"""Dataset of ColBERT, from the tables of `tasks/pairs`; every text is one sequence."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from bertjax.errors import UserError
from bertjax.io.files import write_output
from bertjax.layers.text_embeddings import maxsim
from bertjax.metrics import classification
from bertjax.tasks import dataset
from bertjax.tasks.colbert.encoding import DOCUMENT, QUERY, make_encoder
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.pairs import dataset as pairs_dataset
from bertjax.tasks.pairs import splits
from bertjax.tasks.pairs.ranks import rank_positives
from bertjax.tasks.pairs.tables import PairExamples, PairLoss
from bertjax.tasks.sequences import Pairs

Fields = Mapping[str, Any]

_LOSS = PairLoss("contrastive", False, "contrastive")


class DataFields(pairs_dataset.DataFields):
    """The fields of `config.data`, those of pairs; `max_seq_length` is that of documents."""


class Dataset:
    """Dataset of queries and documents; see `interfaces.Dataset`."""

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits; see `interfaces.Dataset` for the arguments.

        Raises:
          UserError: a file or column is missing or invalid, or does not fit the config.
        """
        encoder = make_encoder(spec, task["query_length"])
        read = splits.read(data, fields, lambda table: _LOSS)
        read.check_ranking()
        self.name, self.examples = read.name, read.examples
        train = self.examples["train"]
        if len(set(train.columns)) < 2:
            raise UserError(
                f"{self.name}: got one column of text, {train.columns[0]!r}, expected two for "
                "colbert, queries and documents; choose the second with --text_pair COLUMN"
            )
        self._query_length = task["query_length"]
        columns = ", ".join(map(repr, train.columns))
        markers = "[unused0], [unused1]" if encoder.markers else "none, as there is no [unused0]"
        self.findings = (f"columns: {columns}; markers of queries and documents: {markers}",)
        self.findings += read.held_out
        self.batches = {}
        for split, own in self.examples.items():
            sampled = spec.subsample(split, own)
            group = len(sampled.texts)
            is_query = np.arange(len(sampled) * group) % group == 0
            encoded = encoder.encode(sampled.flat_texts, is_query)
            own_spec = dataclasses.replace(spec, batch_size=spec.batch_size * group)
            if split == "train":
                labels = sampled.text_ids.reshape(-1)
                self.batches[split] = own_spec.batches(split, encoded, labels, group)
            else:
                self.batches[split] = own_spec.batches(split, encoded, None)
        self.dev = ("dev",)
        self.test = read.test
        self.left_out = dict.fromkeys(self.examples, ())
        self.task_fields = MappingProxyType(
            {"columns": train.columns[:2], "texts_per_example": len(train.texts)}
        )

    def score(self, split: str, predictions: Float[np.ndarray, "n L E"]) -> dict[str, float]:
        """Returns the metrics of a split.

        With scores `spearman` and `pearson`; else `mrr`, the mean reciprocal rank of the positive
        among all documents of the split, and `accuracy`, the share of first ranks.
        """
        examples = self.examples[split]
        texts = TokenVectors.of(self.batches[split].pairs, predictions, self._query_length)
        group = len(examples.texts)
        if examples.scores is not None:
            scores = texts.pair_scores(group)
            return {
                "spearman": classification.spearman(scores, examples.scores),
                "pearson": classification.pearson(scores, examples.scores),
            }
        ranks = rank_positives(examples.text_ids, functools.partial(texts.scores, group))
        return {"mrr": float((1 / ranks).mean()), "accuracy": float((ranks == 1).mean())}

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: `spearman` if the dev split has scores, else `mrr`."""
        name = "mrr" if self.examples["dev"].scores is None else "spearman"
        return {"dev/score": values[f"dev/{name}"]}

    def write(
        self, split: str, predictions: Float[np.ndarray, "n L E"], folder: pathlib.Path
    ) -> None:
        """Writes `SPLIT.jsonl`: of each pair the texts and `score`, and the true score."""
        examples = self.examples[split]
        texts = TokenVectors.of(self.batches[split].pairs, predictions, self._query_length)
        scores = texts.pair_scores(len(examples.texts)).tolist()
        rows = _rows(examples, scores)
        write_output(folder / f"{split}.jsonl", "\n".join(rows) + "\n")


def _rows(examples: PairExamples, scores: list[float]) -> list[str]:
    columns = dict(zip(examples.columns, examples.texts, strict=True)) | {"score": scores}
    if examples.scores is not None:
        columns["true"] = examples.scores.tolist()
    values = zip(*columns.values(), strict=True)
    return [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in values]


@dataclasses.dataclass(frozen=True)
class TokenVectors:
    """Vectors of the tokens of texts, on the host.

    Attributes:
      vectors: Vectors of all tokens; arbitrary in padding.
      kinds: `token_kinds` of every token.
      query_length: Tokens of a query.
    """

    vectors: Float[np.ndarray, "n L E"]
    kinds: np.ndarray
    query_length: int

    @classmethod
    def of(
        cls, sequences: Pairs, vectors: Float[np.ndarray, "n L E"], query_length: int
    ) -> "TokenVectors":
        """Returns the vectors of encoded texts, predicted in batches of any lengths."""
        rows = sequences.rows(np.arange(len(sequences)), vectors.shape[1])
        return cls(vectors, rows["token_kinds"], query_length)

    def queries(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns vectors and mask of some texts, which are queries."""
        kept = slice(self.query_length)
        return self.vectors[rows, kept], self.kinds[rows, kept] == QUERY

    def documents(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns vectors and mask of some texts, which are documents."""
        return self.vectors[rows], self.kinds[rows] == DOCUMENT

    def scores(self, group: int, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Scores the queries of some examples with some of the documents of all examples.

        Args:
          group: Texts of an example.
          rows: Numbers of the examples.
          chosen: Numbers of the documents, among those of all examples.
        """
        documents = self.documents(chosen // (group - 1) * group + 1 + chosen % (group - 1))
        # One query at a time, for memory.
        each = [_maxsim(*self.queries(slice(r * group, r * group + 1)), *documents) for r in rows]
        return np.concatenate([np.array(scores) for scores in each])

    def pair_scores(self, group: int) -> Float[np.ndarray, " examples"]:
        """Scores the query of every example with its first document."""
        starts = range(0, len(self.vectors), group)
        pairs = (
            (self.queries(slice(n, n + 1)), self.documents(slice(n + 1, n + 2))) for n in starts
        )
        return np.array([float(_maxsim(*query, *document)[0, 0]) for query, document in pairs])


_maxsim = jax.jit(maxsim)

OUTPUT = "predict"
"""The method of `tasks/colbert/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return tuple(task["columns"])


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: one pair per line, tab-separated or a JSON object of the two columns.

    Answers have the texts and `score`, and `"truncated": true` where a text was too long.

    Raises:
      UserError: a line has another number of fields, or other keys.
    """
    names = input_fields(task)
    rows = [dataset.parse_fields(line, names) for line in lines]
    flat = [row[name] for row in rows for name in names]
    encoder = make_encoder(spec, task["query_length"])
    encoded = encoder.encode(flat, np.arange(len(flat)) % 2 == 0)
    truncated = encoded.truncated.reshape(len(rows), -1).any(axis=1)

    def answers(vectors: Float[np.ndarray, "n L E"]) -> list[dict[str, Any]]:
        scores = TokenVectors.of(encoded, vectors, task["query_length"]).pair_scores(2).tolist()
        return [
            {**row, "score": score, **({"truncated": True} if cut else {})}
            for row, score, cut in zip(rows, scores, truncated, strict=True)
        ]

    return PredictionRequest(spec.batches("predict", encoded, None), answers)
