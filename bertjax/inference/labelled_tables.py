"""Evaluate a classifier of texts, or a regression, on a labelled table."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Num

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.inference import predict
from bertjax.io import copies
from bertjax.metrics.sequences import DEFAULTS, MULTI_LABEL, REGRESSION
from bertjax.tasks.sequence import dataset, files, labels
from bertjax.tasks.sequence.examples import SequenceExamples
from bertjax.tasks.sequence.predictions import write_report

_TASK = "sequence"
_BATCHES_PER_CHUNK = 16
"""Number of batches within which texts are sorted by length."""


def evaluate(
    model: str,
    data: str,
    *,
    text: str = "",
    text_pair: str = "",
    label: str = "",
    label_separator: str = "",
    metrics: Sequence[str] = (),
    batch_size: int = 32,
    precision: str = "auto",
    output: str = "",
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> dict[str, float]:
    """Evaluates a classifier of texts, or a regression, on a labelled table.

    Args:
      model: A run of the config `task`, or a Hugging Face folder with such a head.
      data: A table: CSV, TSV, JSON lines, Parquet or Arrow.
      text: Column of the text; "" for that of the training, or one with a common name.
      text_pair: Column of the second text.
      label: Column of the label, likewise.
      label_separator: Text between the labels of a cell; "" for that of the training.
      metrics: Names of metrics, as in `config.task.eval_metrics`; () for those of the training.
      batch_size: Sequences per batch.
      precision: As `config.model.precision`.
      output: Folder for every prediction, a table of the classes and the confusion matrix; "" for
        none.
      progress: Called with the share of the work that is done, and a line of text.

    Returns:
      The metrics, and the numbers of `examples` and of `truncated` ones.

    Raises:
      UserError: there is no such model, file or column, a text is empty, or the model does not
        have a label.
    """
    predictor = predict.load(run_cache.find_run(model), precision=precision)
    task = predictor.config.task
    if task.name != _TASK:
        raise UserError(
            f"{model}: got a model of the task {task.name}, expected one of --config task or an "
            "imported classifier; use bertjax predict and bertjax evaluate predictions"
        )
    names = tuple(metrics) or tuple(task.get("eval_metrics", ())) or DEFAULTS[task.problem_type]
    dataset.check_metrics("metrics", names, task.problem_type, len(task.labels))
    table = files.read_tables([str(copies.local_copy(data))])
    fields = {"text": text, "text_pair": text_pair, "label": label}
    columns = _choose_columns(table, predictor.config, fields)
    separator = _choose_separator(label_separator, table, columns, predictor.config)
    examples = _read(table, columns, task, separator)
    logits, num_truncated = _outputs(predictor, examples.texts, batch_size, progress)
    if output:
        write_report(
            pathlib.Path(output),
            pathlib.Path(data).name.partition(".")[0],
            examples=examples,
            texts=columns.texts,
            logits=logits,
            problem_type=task.problem_type,
            labels=task.labels,
        )
    found = dataset.compute_metrics(names, task.problem_type, logits, examples.labels)
    return found | {"examples": len(examples), "truncated": num_truncated}


def _choose_columns(table: Table, config: Any, fields: Mapping[str, str]) -> files.Columns:
    """Chooses the given columns, else those of the training, else those with common names."""
    texts, chosen = tuple(config.task.texts), dict(fields)
    before = config.data.label if "label" in config.data else ""
    if not chosen["text"] and not chosen["text_pair"] and {*texts} <= {*table.columns}:
        chosen |= dict(zip(("text", "text_pair"), texts, strict=False))
    if not chosen["label"] and before in table.columns:
        chosen["label"] = before
    columns = files.choose_columns(table, chosen)
    if len(columns.texts) != len(texts):
        raise UserError(
            f"{table.path}: got the text columns {', '.join(columns.texts)}, expected "
            f"{len(texts)}, as of the model; choose with --text and --text_pair"
        )
    return columns


def _choose_separator(given: str, table: Table, columns: files.Columns, config: Any) -> str:
    """Returns the given separator of labels, else that of the training."""
    if not given:
        return config.data.label_separator if "label_separator" in config.data else ""
    kind = config.task.problem_type
    if kind != MULTI_LABEL:
        raise UserError(
            f"label_separator: got {given!r}, expected none, as the problem type of the model is "
            f"{kind}, not {MULTI_LABEL}; leave it out"
        )
    if any(isinstance(value, list) for value in table.parse_column(columns.label)):
        raise UserError(
            f"label_separator: got {given!r}, expected none, as the labels of {columns.label!r} "
            "are lists; leave it out"
        )
    return given


def _read(table: Table, columns: files.Columns, task: Any, separator: str) -> SequenceExamples:
    texts, values = files.read_texts(table, columns), table.parse_column(columns.label)
    if task.problem_type == REGRESSION:
        found = labels.to_scores(values, table.locations)
    else:
        names = [
            labels.names_of(value, task.problem_type, separator, location)
            for value, location in zip(values, table.locations, strict=True)
        ]
        found = labels.to_array(names, task.labels, task.problem_type, table.locations)
    return SequenceExamples(texts, found, [str(row) for row in range(len(table.locations))])


def _outputs(
    predictor: predict.Predictor,
    texts: tuple[list[str], ...],
    batch_size: int,
    progress: Callable[[float, str], None],
) -> tuple[Num[np.ndarray, "n C"], int]:
    """Returns the outputs of the head, and the number of truncated examples."""
    batch_size = -(-batch_size // predictor.mesh.size) * predictor.mesh.size
    spec = predict.encoding_spec(predictor.config, predictor.tokenizer, batch_size)
    size, step = len(texts[0]), batch_size * _BATCHES_PER_CHUNK
    found, num_truncated = [], 0
    for begin in range(0, size, step):
        encoded = spec.encode(tuple(column[begin : begin + step] for column in texts))
        found.append(predictor.outputs(spec.batches("predict", encoded, None)))
        num_truncated += int(np.sum(encoded.truncated))
        done = min(begin + step, size)
        progress(done / size, f"{done:,} examples")
    return np.concatenate(found), num_truncated
