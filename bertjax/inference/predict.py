"""Predict with a fine-tuned model: a prediction for each input line or row of a table."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from bertjax import build, catalog, pretrained
from bertjax.corpus.documents import replace_surrogates
from bertjax.corpus.format import Table
from bertjax.corpus.text import check_no_array, table_format
from bertjax.errors import UserError
from bertjax.huggingface import heads as huggingface_heads
from bertjax.inference.text_encoder import check_texts
from bertjax.interfaces import Batch, Params, Tokenizer
from bertjax.io import file_kinds
from bertjax.io.lines import read_text_lines
from bertjax.pretrainer import Pretrainer
from bertjax.runs import examples, multitask
from bertjax.tasks.batches import PairBatches
from bertjax.tasks.dataset import EncodingSpec, Line
from bertjax.train import evaluate, sharding

_DEFAULT_LENGTH = 512
"""Maximum sequence length if the config has none and the model allows it."""

_MIN_LENGTH = 16
"""The smallest padded length."""


@dataclasses.dataclass(frozen=True)
class Predictor:
    """Fine-tuned model for inference.

    Attributes:
      config: Config of the run, reduced to one task.
      tokenizer: Tokenizer of the run.
      data: Folder to which the paths of the config are relative.
      params: Parameters on the devices.
      step: Compiled; from a batch to the outputs of the task.
      mesh: The devices.
    """

    config: ConfigDict
    tokenizer: Tokenizer
    data: str
    params: Params
    step: Callable[[Params, Batch], jax.Array]
    mesh: Mesh

    @property
    def _dataset(self) -> ModuleType:
        return catalog.load("tasks", self.config.task.name, "dataset")

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The names of the fields of an input, such as the one or two texts of a classifier."""
        return self._dataset.input_fields(self.config.task)

    def name_texts(self, texts: Any) -> list[dict[str, str]]:
        """Returns the texts of each row by column name; see `text_encoder.check_texts`.

        Raises:
          UserError: a row has another number of texts, or lacks a column.
        """
        names = self.input_fields
        rows = list(check_texts(texts, names=names))
        for count in map(len, rows):
            if count != len(names):
                raise UserError(f"got {count} text(s), expected {len(names)}: {', '.join(names)}")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def predict(self, lines: Sequence[Line], batch_size: int) -> list[dict[str, Any]]:
        """Predicts each input line, in order.

        Args:
          lines: Inputs, in the format of the task.
          batch_size: Number of sequences per batch.

        Returns:
          For each line, its input and prediction.

        Raises:
          UserError: a line does not have the format of the task.
        """
        if not lines:
            return []
        config = self.config
        batch_size = -(-batch_size // self.mesh.size) * self.mesh.size
        spec = encoding_spec(config, self.tokenizer, batch_size)
        request = self._dataset.from_inputs(lines, self.data, config.task, config.data, spec)
        return request.answers(self.outputs(request.batches))

    def predict_rows(self, rows: Sequence[dict[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """Predicts inputs that are objects instead of lines; see `predict`."""
        texts = (replace_surrogates(json.dumps(row, ensure_ascii=False)) for row in rows)
        lines = [(f"text {number}", text) for number, text in enumerate(texts, 1)]
        return self.predict(lines, batch_size)

    def outputs(self, batches: PairBatches) -> np.ndarray:
        """Returns the outputs of the task for encoded sequences, whose batches fit the mesh."""
        rows = sharding.local_rows(batches.batch_size, self.mesh)
        numbered, size = batches.evaluation_batches(rows), batches.num_examples
        return evaluate.predict(self.step, self.params, numbered, size, self.mesh)


def load(
    init: str | pretrained.Pretrained, *, task: str = "", data: str = "", precision: str = ""
) -> Predictor:
    """Loads a fine-tuned model from a run.

    Args:
      init: RUN, RUN@STEP or RUN@best, or a loaded model; see `pretrained.load`.
      task: Name of the task, for a multi-task run.
      data: Folder to which the paths of the config are relative, such as that of a knowledge graph.
      precision: As `config.model.precision`; empty for that of the run.

    Raises:
      UserError: the run was not fine-tuned, has no checkpoint, or does not have the task.
    """
    run = pretrained.load(init)
    if "task" not in run.source.config:
        raise UserError(
            f"{run.source.run} has no task: expected a run of bertjax finetune that kept its "
            "checkpoints (--config.keep_checkpoints=true), such as runs/mrpc/seed_0"
        )
    head, config = _select_task(run.config, task)
    if data and not ("knowledge" in config.data and config.data.knowledge):
        raise UserError(
            f"data: got {data}, expected none, since the run's recipe has no knowledge graph; "
            "leave it out"
        )
    pretrainer = Pretrainer(run.forward_encoder(precision), {head: build.task(config.task)})
    mesh = sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "sequence": 1})
    replicated = NamedSharding(mesh, PartitionSpec())
    output = catalog.load("tasks", config.task.name, "dataset").OUTPUT
    return Predictor(
        config,
        run.tokenizer,
        data,
        jax.device_put(run.load_params("encoder", head), replicated),
        _compile(pretrainer, head, output, mesh),
        mesh,
    )


def read_lines(path: str | None) -> Iterator[Line]:
    """Iterates over the examples of a file or of standard input.

    CSV, Parquet and Arrow have a header: each row becomes a JSON object with the names of the
    columns. Of other files, and of TSV, each line that is not blank is an example, or the header;
    see `rows_below_header`.

    Raises:
      UserError: the file is neither text nor a table, such as a JSON array, or is damaged.
    """
    if path is not None:
        check_no_array(path)
    file_format = table_format(path) if path is not None else None
    is_lines = file_format is None or {*file_format.kinds} & {*_TABLES_OF_LINES}
    if not is_lines and file_format.read_table is not None:
        return _rows(file_format.read_table(path))
    lines = read_text_lines(path, tables=_TABLES_OF_LINES)
    return (line for line in lines if line[1].strip())


_TABLES_OF_LINES = (file_kinds.TSV, file_kinds.JSON_LINES)


def rows_below_header(
    lines: Iterator[Line], names: Sequence[str], log: Callable[[str], None]
) -> Iterator[Line]:
    """Converts the lines of a table with tabs to JSON objects, if the first one is its header.

    A header has all names, and at least one line follows. Other lines are returned as they are.

    Args:
      lines: The examples, as of `read_lines`.
      names: The names of the fields of an input.
      log: Logs a note if there is a header, since a text may be the name of its column.

    Raises:
      UserError: the first line is the header of a CSV table, or a row has another number of cells.
    """
    start = list(itertools.islice(lines, 2))
    unchanged = itertools.chain(start, lines)
    if len(start) < 2:
        return unchanged
    where, first = start[0]
    columns = [name.strip() for name in first.split("\t")]
    if {*names} <= {*columns} and len({*columns}) == len(columns):
        log(f"{where}: read as a header, with the columns {', '.join(columns)}")
        return _rows(_read_table(columns, itertools.islice(unchanged, 1, None)))
    for separator in ",;":
        if {*names} <= {name.strip('"') for name in first.split(separator)}:
            raise UserError(
                f"{where}: got {first!r}, the header of a CSV table, expected one text per line; "
                "pass the table with --input FILE.csv"
            )
    return unchanged


def _read_table(columns: Sequence[str], lines: Iterable[Line]) -> Table:
    cells, locations = [], []
    for where, text in lines:
        row = text.split("\t")
        if len(row) != len(columns):
            raise UserError(
                f"{where}: got {len(row)} field(s), expected {len(columns)} as in the header; fix "
                "the row"
            )
        cells.append(row)
        locations.append(where)
    named = dict(zip(columns, map(list, zip(*cells, strict=True)), strict=True))
    return Table("", named, locations, has_types=False)


def _rows(table: Table) -> Iterator[Line]:
    columns = {}
    for name, cells in table.columns.items():
        parsed = table.parse_column(name)
        # A text may be in brackets; a column of lists has nothing else.
        columns[name] = parsed if all(isinstance(cell, list) for cell in parsed) else cells
    for location, *cells in zip(table.locations, *columns.values(), strict=True):
        row = dict(zip(columns, cells, strict=True))
        yield location, json.dumps(row, ensure_ascii=False, default=str)


def _select_task(config: ConfigDict, task: str) -> tuple[str, ConfigDict]:
    """Returns the name of a task's head, and the config reduced to that task."""
    if not multitask.is_multitask(config):
        name = huggingface_heads.name_of(config)
        if task not in ("", name):
            raise UserError(f"task: got {task}, expected {name}, the only task of the run")
        return config.task.name, config
    names = config.task.dataset.split(multitask.BETWEEN)
    if task not in names:
        raise UserError(f"task: got {task or 'none'}, expected one of {', '.join(names)}")
    return task, multitask.single_task(config, task)


def _compile(
    pretrainer: Pretrainer, head: str, output: str, mesh: Mesh
) -> Callable[[Params, Batch], jax.Array]:
    def method(module: Pretrainer, batch: Batch) -> jax.Array:
        task = getattr(module, head)
        encoded = module.encoder(batch, train=False)
        if output == "predict":
            return task.predict(module.encoder, encoded, batch)
        return task.scores(module.encoder, encoded, batch, train=False)[0]

    def step(params: Params, batch: Batch) -> jax.Array:
        return pretrainer.apply({"params": params}, batch, method=method)

    return jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec()))


def encoding_spec(config: ConfigDict, tokenizer: Tokenizer, batch_size: int) -> EncodingSpec:
    """Returns the encoding of sequences for a run's model.

    Args:
      config: Config of the run.
      tokenizer: Tokenizer of the run.
      batch_size: Sequences per batch.
    """
    max_length = build.positions(config.model)
    if "max_seq_length" in config.data:
        max_length = min(max_length, config.data.max_seq_length)
    else:
        max_length = min(max_length, _DEFAULT_LENGTH)
    length = int(max_length)
    # The powers of two that exceed the maximum length are ignored.
    lengths = [_MIN_LENGTH << power for power in range(length.bit_length())]
    return EncodingSpec(
        tokenizer=tokenizer,
        max_seq_length=length,
        cls_last=build.cls_last(config.model),
        max_chars_per_word=examples.max_chars_per_word(config.model),
        takes_positions=examples.reads_position_ids(config.model),
        batch_size=batch_size,
        eval_batch_size=batch_size,
        padded_lengths=tuple(lengths),
        batches_per_group=1,
        max_train_examples=0,
        seed=0,
    )
