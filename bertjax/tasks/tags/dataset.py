"""Dataset of a table with words and tags, or with texts and labelled spans."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from bertjax.constraints import AnyText, OpenShare, Seed
from bertjax.corpus.format import Table
from bertjax.data.random import sample
from bertjax.errors import UserError
from bertjax.io.files import write_output
from bertjax.metrics import entities
from bertjax.metrics.sequences import METRICS
from bertjax.tasks import dataset, tables
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.ner import conll
from bertjax.tasks.ner import dataset as ner_dataset
from bertjax.tasks.sequence.predictions import write_classes
from bertjax.tasks.tags import rows as tag_rows
from bertjax.tasks.tags.rows import Row

Fields = Mapping[str, Any]

TEXT_COLUMNS = ("tokens", "words", "text", "sentence")
LABEL_COLUMNS = ("tags", "ner_tags", "pos_tags", "labels", "spans", "entities", "label")
"""Common names of columns, the first that exists is chosen."""


class DataFields(dataset.DataFields):
    """The fields of `config.data`.

    Attributes:
      text: Column of the words or the text; "" for one with a common name.
      label: Column of the tags or spans; "" for one with a common name.
      validation_fraction: Share of the training examples that becomes the dev split, of each class
        about the same, if there is no dev file; None for 0.1.
      split_seed: Seed of that choice; None for 0.
    """

    text: AnyText
    label: AnyText
    validation_fraction: OpenShare | None
    split_seed: Seed | None


class TaggedRows(list[Row]):
    """The examples of a split; `labelled` is false for a test split without labels."""

    def __init__(self, rows: Iterable[Row], labelled: bool = True):
        super().__init__(rows)
        self.labelled = labelled

    def take(self, kept: Int[np.ndarray, " m"]) -> "TaggedRows":
        """Returns the examples with these numbers, in their order."""
        return TaggedRows([self[i] for i in kept], self.labelled)

    def sample(self, size: int, seed: int) -> "TaggedRows":
        """Returns `size` random examples, sampled without replacement, in file order."""
        return self.take(sample(len(self), size, seed))


class Dataset(ner_dataset.Dataset):
    """Token classification of a table; see `interfaces.Dataset`. One sequence per example.

    Attributes:
      findings: Lines that describe the columns and tags that were found.
    """

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits; see `interfaces.Dataset` for the arguments.

        Raises:
          UserError: a file, column, tag or span is missing or invalid.
        """
        self.name = pathlib.Path(data).resolve().name.partition(".")[0] or "tags"
        found = tables.read_splits(data)
        train = found["train"]
        self.column = tables.choose_column(train, fields["text"], TEXT_COLUMNS, "text")
        self._label = tables.choose_column(train, fields["label"], LABEL_COLUMNS, "label")
        self.reads_text = tag_rows.has_texts(train, self.column, self._label)
        read = {name: self._read(name, table) for name, table in found.items()}
        self.has_entities = tag_rows.are_entities(read["train"])
        if self.has_entities:
            read = {name: self._with_iob2(rows) for name, rows in read.items()}
        tags = self._tag_names(train, read["train"])
        self.rows, lines = tables.with_dev(data, read, fields, _presence(read["train"], tags))
        self.sentences = {name: _sentences(rows, tags) for name, rows in self.rows.items()}
        self._encode(tags, spec, document_context=False)
        self.task_fields = MappingProxyType(
            {"labels": tags, "column": self.column, "reads_text": self.reads_text}
        )
        kind = "spans" if self.reads_text else "entities" if self.has_entities else "classes"
        self.findings = (
            f"columns: {'text' if self.reads_text else 'words'} {self.column!r}, label "
            f"{self._label!r} ({kind})",
            f"tags of train: {', '.join(tags)}",
            *lines,
        )

    def _read(self, name: str, table: Table) -> TaggedRows:
        tables.files.check_column(table, self.column, "text")
        labelled = tables.is_labelled(table, self._label, name)
        read = tag_rows.read_spans if self.reads_text else tag_rows.read_tagged
        return TaggedRows(read(table, self.column, self._label if labelled else ""), labelled)

    @staticmethod
    def _with_iob2(rows: TaggedRows) -> TaggedRows:
        for row in rows:
            for tag, where in zip(row.sentence.tags, row.sentence.locations, strict=True):
                if not conll.is_tag(tag):
                    raise UserError(
                        f"{where}: tag: got {tag!r}, expected O, or B-TYPE or I-TYPE as in the "
                        "training examples; fix the row"
                    )
        sentences = conll.with_iob2([row.sentence for row in rows])
        pairs = zip(rows, sentences, strict=True)
        return TaggedRows(
            [dataclasses.replace(row, sentence=own) for row, own in pairs], rows.labelled
        )

    def _tag_names(self, table: Table, train: TaggedRows) -> tuple[str, ...]:
        sentences = [row.sentence for row in train]
        if self.has_entities:
            return conll.tag_names(sentences)
        names = tuple(sorted({tag for sentence in sentences for tag in sentence.tags}))
        if len(names) < 2:
            raise UserError(
                f"{table.path}: column {self._label!r} has the tags {', '.join(names)}, expected "
                "several; choose the column with --label COLUMN"
            )
        return names

    def score(self, split: str, predictions: Int[np.ndarray, "n L"]) -> dict[str, float]:
        """Returns the metrics of `conlleval`; of tags that are not entities accuracy and macro F1.

        None for an unlabelled split.
        """
        if not self.rows[split].labelled:
            return {}
        if self.has_entities:
            return super().score(split, predictions)
        found, true = self._one_hot(split, predictions)
        return {name: METRICS[name].compute(found, true) for name in ("accuracy", "macro_f1")}

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: F1 of entities, or the accuracy of tags, on the dev split."""
        return {"dev/score": values["dev/f1" if self.has_entities else "dev/accuracy"]}

    def _one_hot(self, split: str, predictions: Int[np.ndarray, "n L"]):
        """Returns the predicted tag of every word as [w C], and the true one as [w]."""
        numbers = {tag: number for number, tag in enumerate(self.tags)}
        true = [numbers[tag] for sentence in self.sentences[split] for tag in sentence.tags]
        found = [numbers[tag] for tags in self.predicted_tags(split, predictions) for tag in tags]
        return np.eye(len(self.tags))[found], np.array(true)

    def write(self, split: str, predictions: Int[np.ndarray, "n L"], folder: pathlib.Path) -> None:
        """Writes `SPLIT.jsonl`, every example, and `SPLIT_classes.txt`, a table of the classes.

        For tags that are not entities also the confusion matrix of `tasks/sequence/predictions.py`.
        """
        rows, predicted = self.rows[split], self.predicted_tags(split, predictions)
        lines = []
        for row, tags in zip(rows, predicted, strict=True):
            answer = _labels(row, tags)
            (name,) = answer
            true = {"true": _labels(row, row.sentence.tags)[name]} if rows.labelled else {}
            given = {self.column: row.text if self.reads_text else list(row.sentence.words)}
            lines.append(json.dumps(given | true | answer, ensure_ascii=False))
        write_output(folder / f"{split}.jsonl", "\n".join(lines) + "\n")
        if rows.labelled and self.has_entities:
            table = _type_table(predicted, [sentence.tags for sentence in self.sentences[split]])
            write_output(folder / f"{split}_classes.txt", "\n".join(table) + "\n")
        elif rows.labelled:
            write_classes(folder, split, *self._one_hot(split, predictions), self.tags)


def _type_table(
    predicted: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[str]:
    """Returns the lines of a table of the entity types, the lowest F1 first."""
    counts = entities.count_by_type(predicted, references)
    width = max(map(len, ("class", *counts)))
    rows = [f"{'class':{width}}  precision  recall      F1  entities"]
    for kind, own in sorted(counts.items(), key=lambda item: item[1].f1):
        rows.append(
            f"{kind:{width}}  {own.precision:9.4f}  {own.recall:6.4f}  {own.f1:6.4f}  "
            f"{own.reference:8,}"
        )
    return rows


def _labels(row: Row, tags: Sequence[str]) -> dict[str, Any]:
    """Returns the spans of a text, or the tags of words, by name."""
    if row.ranges:
        return {"spans": tag_rows.to_spans(row.text, row.ranges, tags)}
    return {"tags": list(tags)}


def _sentences(rows: TaggedRows, tags: tuple[str, ...]) -> ner_dataset.Split:
    """Returns the sentences of a split; the first tag is the placeholder of absent labels."""
    if rows.labelled:
        return ner_dataset.Split(row.sentence for row in rows)
    words = [row.sentence.words for row in rows]
    return ner_dataset.Split(ner_dataset.untagged_sentences(words, tags))


def _presence(rows: TaggedRows, tags: Sequence[str]) -> Int[np.ndarray, "n C"]:
    """Returns whether each example has each tag, for iterative stratification."""
    numbers = {tag: number for number, tag in enumerate(tags)}
    found = np.zeros((len(rows), len(tags)), np.int8)
    for number, row in enumerate(rows):
        found[number, [numbers[tag] for tag in set(row.sentence.tags)]] = 1
    return found


OUTPUT = "scores"
"""The method of `tasks/tags/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return (task["column"],)


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: a text per line, or words separated by spaces; or a JSON object.

    The key of the object is the name of the column. Answers have it, and `spans` (start, end,
    label, text and the mean probability of its tags) or, as for NER, `tags`, `probabilities` and
    `entities`, unless the tags are classes.

    Raises:
      UserError: a line is empty, or not such an object.
    """
    (key,), labels = input_fields(task), task["labels"]
    if task["reads_text"]:
        texts = [dataset.parse_fields(line, (key,))[key] for line in lines]
        table = Table("", {key: texts}, [where for where, _ in lines])
        rows = tag_rows.read_spans(table, key, "")
    else:
        words = [ner_dataset.parse_words(line, key) for line in lines]
        rows = [Row(sentence) for sentence in ner_dataset.untagged_sentences(words, labels)]
    sentences = [row.sentence.words for row in rows]
    encoded = ner_dataset.encode_sentences(
        ner_dataset.untagged_sentences(sentences, labels), labels, spec
    )

    def answers(logits: Float[np.ndarray, "n L C"]) -> list[dict[str, Any]]:
        found = zip(rows, encoded.by_sentence(logits), strict=True)
        if task["reads_text"]:
            return [_spans(key, row, labels, softmax(own, axis=-1)) for row, own in found]
        return [
            ner_dataset.tagged_words(key, row.sentence.words, labels, own) for row, own in found
        ]

    return PredictionRequest(spec.batches("predict", encoded.pairs, None), answers)


def _spans(
    key: str, row: Row, labels: Sequence[str], probabilities: Float[np.ndarray, "w C"]
) -> dict[str, Any]:
    tags = [labels[number] for number in probabilities.argmax(axis=-1)]
    best = probabilities.max(axis=-1)
    spans = tag_rows.to_spans(row.text, row.ranges, tags)
    for span, (_, first, last) in zip(spans, entities.extract_entities(tags), strict=True):
        span["probability"] = float(best[first:last].mean())
    return {key: row.text, "spans": spans}
