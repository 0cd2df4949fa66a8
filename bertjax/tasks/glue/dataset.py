"""Dataset of single-sentence and sentence-pair tasks: GLUE and tasks in its file format."""

import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Num

from bertjax.constraints import AnyText, PositiveInt
from bertjax.errors import UserError
from bertjax.metrics import classification
from bertjax.tasks import dataset, knowledge
from bertjax.tasks import sequences as tasks_sequences
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.glue import files as glue_files
from bertjax.tasks.glue import predictions as glue_predictions
from bertjax.tasks.glue.table import GlueTask, glue_task
from bertjax.tasks.sequence.examples import SequenceExamples
from bertjax.tasks.sequence.predictions import prediction_request

Fields = Mapping[str, Any]


class DataFields(dataset.DataFields):
    """The fields of `config.data`.

    Attributes:
      knowledge: Path of a knowledge graph (K-BERT), relative to the data; "" for none.
      triples_per_entity: Maximum number of triples inserted per mention of an entity.
    """

    knowledge: AnyText
    triples_per_entity: PositiveInt


class Dataset:
    """Dataset of one GLUE-style task; see `interfaces.Dataset`. One sequence per example."""

    task_fields = MappingProxyType({})

    def __init__(self, data: str, task: Mapping[str, Any], fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits.

        Args:
          data: The data folder, or `tfds:DIR`; see `tasks/glue/files.py`.
          task: `config.task`.
          fields: `config.data`.
          spec: The encoding: tokenizer, lengths and batch sizes.

        Raises:
          UserError: a required split is missing, or a file, a label name or the graph is invalid.
        """
        self.task = glue_task(task["dataset"])
        self.name = self.task.name
        self.task.class_names(task.get("labels", ()))  # raises before training, not after
        graph = _graph(data, fields, spec)
        self.examples = glue_files.read(data, self.task)
        self.batches = {}
        for split, examples in self.examples.items():
            sampled = spec.subsample(split, examples)
            sequences = _encode(sampled, fields, spec, graph)
            self.batches[split] = spec.batches(split, sequences, sampled.labels)
        evaluated = [split for split in self.task.splits if split.name in self.examples]
        evaluated = [split for split in evaluated if split.server]
        self.dev = tuple(split.name for split in evaluated if split.labelled)
        self.test = tuple(split.name for split in evaluated if not split.labelled)
        self.left_out = {split: examples.left_out for split, examples in self.examples.items()}

    def score(self, split: str, predictions: Num[np.ndarray, " n"]) -> dict[str, float]:
        """Returns the task's official metrics, as fractions; none for an unlabelled split."""
        return scores(self.task, predictions, self.examples[split].labels)

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: the mean of the task's metrics on the dev split."""
        named = [values[f"dev/{metric}"] for metric in self.task.metrics]
        return {"dev/score": float(np.mean(named))}

    def write(self, split: str, predictions: Num[np.ndarray, " n"], folder: pathlib.Path) -> None:
        """Writes the file of the evaluation server, such as `test/RTE.tsv`."""
        row = self.task.split(split)
        path = folder / ("dev" if row.labelled else "test") / f"{row.server}.tsv"
        glue_predictions.write(path, self.task, self.examples[split].indices, predictions)


OUTPUT = "scores"
"""The method of `tasks/glue/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return glue_task(task["dataset"]).tfds_texts


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: one example per line, tab-separated texts or a JSON object.

    Answers have the texts, `label` and `probabilities`, or `score` for a regression, and
    `"truncated": true` where the texts exceeded the maximum length.

    Raises:
      UserError: a line has another number of fields, or other keys.
    """
    row = glue_task(task["dataset"])
    names = input_fields(task)
    rows = [dataset.parse_fields(line, names) for line in lines]
    texts = tuple([given[name] for given in rows] for name in names)
    labels = row.class_names(task.get("labels", ()))
    examples = SequenceExamples(texts, None, [str(number) for number in range(len(rows))])
    sequences = _encode(examples, fields, spec, _graph(data, fields, spec))
    return prediction_request(rows, sequences, row.problem_type, labels, spec)


def scores(
    task: GlueTask,
    predictions: Num[np.ndarray, " n"],
    references: Num[np.ndarray, " n"] | None,
) -> dict[str, float]:
    """Computes a task's metrics, as fractions; none without references."""
    if references is None:
        return {}
    return {name: getattr(classification, name)(predictions, references) for name in task.metrics}


def _graph(data: str, fields: Fields, spec: EncodingSpec) -> knowledge.Graph | None:
    """Reads the knowledge graph of the config; a relative path is relative to the data folder.

    Raises:
      UserError: the file is missing, or the model does not read `position_ids`.
    """
    if "knowledge" not in fields or not fields["knowledge"]:
        return None
    if not spec.takes_positions:
        raise UserError(
            "config.data.knowledge requires a model with absolute position embeddings, since "
            "triples have soft positions: use another model, or set --config.data.knowledge=''"
        )
    return knowledge.read(pathlib.Path(data) / fields["knowledge"])


def _encode(
    examples: SequenceExamples, fields: Fields, spec: EncodingSpec, graph: knowledge.Graph | None
) -> tasks_sequences.Pairs:
    if graph is None:
        return spec.encode(examples.texts)
    return knowledge.encode(
        examples.texts,
        spec.tokenizer,
        graph,
        spec.max_seq_length,
        triples_per_entity=fields["triples_per_entity"],
    )
