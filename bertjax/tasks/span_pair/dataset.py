"""Dataset of two marked spans: WiC and WSC of SuperGLUE."""

from collections.abc import Iterable, Mapping
from typing import Any

from bertjax.metrics.sequences import SINGLE_LABEL
from bertjax.tasks import dataset, sequences
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest
from bertjax.tasks.sequence.predictions import prediction_request
from bertjax.tasks.span_pair import encoding
from bertjax.tasks.superglue import dataset as superglue_dataset
from bertjax.tasks.superglue.records import Examples
from bertjax.tasks.superglue.table import SuperGlueTask, superglue_task

Fields = Mapping[str, Any]

DataFields = dataset.DataFields


class Dataset(superglue_dataset.Dataset):
    """SuperGLUE dataset whose sequences have a column `span_ids`."""

    @staticmethod
    def encode(examples: Examples, task: SuperGlueTask, spec: EncodingSpec) -> sequences.Pairs:
        """Encodes the texts of each row as one sequence, with its two spans."""
        return encoding.encode(examples, spec, task.truncate)


OUTPUT = "predict"
"""The method of `tasks/span_pair/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return superglue_task(task["dataset"]).texts


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: one record per line in the released layout, `idx` and `label` optional.

    Answers have the fields of the record, `label` and `probabilities`.

    Raises:
      UserError: a line is not such a record.
    """
    own = superglue_task(task["dataset"])
    given, rows = [], []
    for number, line in enumerate(lines):
        record = dataset.parse_json_object(line, dict.fromkeys(input_fields(task), "a string"))
        record = {name: value for name, value in record.items() if name != "label"}
        given.append(record)
        rows += own.split("test").read(line[0], {**record, "idx": number}, own.labels)
    encoded = encoding.encode(Examples(rows), spec, own.truncate)
    return prediction_request(given, encoded, SINGLE_LABEL, own.labels, spec)
