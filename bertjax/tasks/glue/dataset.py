"""The dataset of single-sentence and sentence-pair tasks: GLUE, and others in its file format."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Num
from scipy.special import softmax

from bertjax.constraints import AnyText, PositiveInt
from bertjax.errors import UserError
from bertjax.metrics import classification
from bertjax.tasks import dataset, knowledge
from bertjax.tasks import sequences as tasks_sequences
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.glue import files as glue_files
from bertjax.tasks.glue import predictions as glue_predictions
from bertjax.tasks.glue.table import GlueExamples, GlueTask, glue_task

Fields = Mapping[str, Any]


class DataFields(dataset.DataFields):
    """`config.data`.

    Attributes:
      knowledge: Path of a graph; "" for none.
      triples_per_entity: At most so many are put behind a word.
    """

    knowledge: AnyText
    triples_per_entity: PositiveInt


class Dataset:
    """See `interfaces.Dataset`."""

    task_fields = MappingProxyType({})

    def __init__(self, data: str, task: Mapping[str, Any], fields: Fields, read: EncodingSpec):
        """Reads and encodes every split that is there.

        Args:
          data: See `tasks/glue/files.py`; the graph's path begins there too.
          task: `config.task`.
          fields: `config.data`.
          read: What the model requires.

        Raises:
          UserError: something is missing or does not fit.
        """
        self.task = glue_task(task["dataset"])
        self.name = self.task.name
        self.task.class_names(task.get("labels", ()))  # wrong names are refused before training
        graph = _graph(data, fields, read)
        self.examples = glue_files.read(data, self.task)
        self.batches = {}
        for split, examples in self.examples.items():
            drawn = read.drawn(split, examples)
            sequences = _encoded(drawn, fields, read, graph)
            self.batches[split] = read.batches(split, sequences, drawn.labels)
        evaluated = [split for split in self.task.splits if split.name in self.examples]
        evaluated = [split for split in evaluated if split.server]
        self.dev = tuple(split.name for split in evaluated if split.labelled)
        self.test = tuple(split.name for split in evaluated if not split.labelled)
        self.left_out = {split: examples.left_out for split, examples in self.examples.items()}

    def score(self, split: str, predictions: Num[np.ndarray, " n"]) -> dict[str, float]:
        """The task's official metrics, as fractions."""
        return scores(self.task, predictions, self.examples[split].labels)

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """The mean of the task's metrics on the dev split."""
        named = [values[f"dev/{metric}"] for metric in self.task.metrics]
        return {"dev/score": float(np.mean(named))}

    def write(self, split: str, predictions: Num[np.ndarray, " n"], folder: pathlib.Path) -> None:
        """The evaluation server's file."""
        row = self.task.split(split)
        path = folder / ("dev" if row.labelled else "test") / f"{row.server}.tsv"
        glue_predictions.write(path, self.task, self.examples[split].indices, predictions)


OUTPUT = "scores"
"""The method of `tasks/glue/head.py` that tells what `ask` needs."""


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, read: EncodingSpec
) -> PredictionRequest:
    """One or two texts a line, with a tab between; or a JSON object with their names.

    An answer has `"truncated": true` where the texts were too long for the model.

    Raises:
      UserError: a line is something else.
    """
    row = glue_task(task["dataset"])
    rows = [dataset.fields(line, row.tfds_texts) for line in lines]
    texts = tuple([given[name] for given in rows] for name in row.tfds_texts)
    names = row.class_names(task.get("labels", ()))
    examples = GlueExamples(texts, None, [str(number) for number in range(len(rows))])
    sequences = _encoded(examples, fields, read, _graph(data, fields, read))

    def answers(logits: Float[np.ndarray, "n C"]) -> list[dict[str, Any]]:
        if row.labels:
            made = [_classified(names, found) for found in softmax(logits, axis=-1).tolist()]
        else:
            made = [{"score": float(found[0])} for found in logits]
        return [
            given | answer | ({"truncated": True} if cut else {})
            for given, answer, cut in zip(rows, made, sequences.truncated, strict=True)
        ]

    return PredictionRequest(read.batches("asked", sequences, None), answers)


def _classified(names: Sequence[str], probabilities: Sequence[float]) -> dict[str, Any]:
    """The most likely class by its name, and the probability of each."""
    return {
        "label": names[int(np.argmax(probabilities))],
        "probabilities": dict(zip(names, probabilities, strict=True)),
    }


def scores(
    task: GlueTask,
    predictions: Num[np.ndarray, " n"],
    references: Num[np.ndarray, " n"] | None,
) -> dict[str, float]:
    """A task's metrics; none where nobody knows the answers."""
    if references is None:
        return {}
    return {name: getattr(classification, name)(predictions, references) for name in task.metrics}


def _graph(data: str, fields: Fields, read: EncodingSpec) -> knowledge.Graph | None:
    """The graph whose triples are put into the texts; a relative path begins at the data.

    Raises:
      UserError: there is none there, or the model cannot read what is made with it.
    """
    if "knowledge" not in fields or not fields["knowledge"]:
        return None
    if not read.takes_positions:
        raise UserError(
            "config.data.knowledge needs a model that is given positions, this one is not: set "
            "--config.data.knowledge=''"
        )
    return knowledge.read(pathlib.Path(data) / fields["knowledge"])


def _encoded(
    examples: GlueExamples, fields: Fields, read: EncodingSpec, graph: knowledge.Graph | None
) -> tasks_sequences.Pairs:
    if graph is None:
        return tasks_sequences.encode(
            examples.texts,
            read.tokenizer,
            read.max_seq_length,
            cls_last=read.cls_last,
            max_chars_per_word=read.max_chars_per_word,
        )
    return knowledge.encode(
        examples.texts,
        read.tokenizer,
        graph,
        read.max_seq_length,
        triples_per_entity=fields["triples_per_entity"],
    )
