"""Read GLUE: the released TSV files, one folder per task, or datasets prepared by TFDS.

In the TSV files quotes are ordinary characters, only a newline ends a line, and some files have a
byte order mark or carriage returns before the newlines. Prepared datasets are read as ArrayRecord,
without TensorFlow.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.io.files import read_text
from bertjax.tasks.glue.table import (
    HIGHEST_SCORE,
    PARAPHRASE_DEV_IDS,
    PARAPHRASE_ID_COLUMNS,
    PARAPHRASE_TRAIN,
    TASKS,
    Column,
    GlueSplit,
    GlueTask,
)
from bertjax.tasks.sequence.examples import SequenceExamples

MAX_BROKEN_SHARE = 0.001
"""Maximum share of malformed lines; a file with more has another format and is refused."""

_Line = tuple[int, list[str]]
"""(line number, from 1; fields)."""

_ROWS_PER_READ = 4096


def read_tsv(directory: str, task: GlueTask) -> dict[str, SequenceExamples]:
    """Reads the available splits from `directory/<task's folder>/*.tsv`.

    Raises:
      UserError: a required file is missing, or a line is malformed.
    """
    folder = pathlib.Path(directory) / task.folder
    if not folder.is_dir():
        _refuse_folder(pathlib.Path(directory), task)
    splits = {}
    for split in task.splits:
        path = next((folder / name for name in split.files if (folder / name).is_file()), None)
        if path is not None:
            splits[split.name] = _read_split(path, task, split)
        elif split.labelled:
            raise UserError(
                f"no {' or '.join(split.files)} in {folder}: {task.name} requires its {split.name} "
                "split; copy the file there"
            )
    return splits


def read_file(path: str | pathlib.Path, task: GlueTask) -> SequenceExamples:
    """Reads one released file from any folder.

    Its name determines the split and thereby the columns; an unknown name is read as dev.

    Raises:
      UserError: the file is missing, or a line is malformed.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise UserError(f"no file {path}: expected a released TSV file of {task.name}")
    evaluated_first = sorted(task.splits, key=lambda split: not split.server)
    named = [split for split in evaluated_first if path.name in split.files]
    return _read_split(path, task, named[0] if named else task.split("dev"))


def _refuse_folder(directory: pathlib.Path, task: GlueTask) -> None:
    if not directory.is_dir():
        raise UserError(f"no folder {directory}: --data expects the folder with {task.folder}/")
    known = [other.folder for other in TASKS if (directory / other.folder).is_dir()]
    raise UserError(
        f"no {task.folder}/ in {directory} (found {', '.join(known) or 'no GLUE task'}): --data "
        f"expects the folder with {task.folder}/"
    )


def _read_split(path: pathlib.Path, task: GlueTask, split: GlueSplit) -> SequenceExamples:
    table = _read_table(path, header=split.header)
    texts = [table.column(name) for name in split.texts]
    has_label = split.labelled or split.label in table.names
    label = table.column(split.label) if has_label else None
    lines, left_out = table.complete(
        [*texts, *([] if label is None else [label])], may_be_broken=task.broken_lines
    )
    if path.name == PARAPHRASE_TRAIN:
        lines = _paraphrases(table, lines, dev=split.name == "dev")
    if not lines:
        raise UserError(f"{path} has no examples: expected one per line")
    return SequenceExamples(
        texts=tuple([fields[text] for _, fields in lines] for text in texts),
        labels=None if label is None else _labels(path, lines, label, task),
        indices=_indices(table, lines),
        left_out=left_out,
    )


@dataclasses.dataclass(frozen=True)
class _Table:
    """The lines of a file as fields, and the column names of its header line, if any."""

    path: pathlib.Path
    names: list[str]
    lines: list[_Line]

    def column(self, name: Column) -> int:
        """Returns the index of a column, from 0."""
        if isinstance(name, int):
            return name
        if name not in self.names:
            raise UserError(
                f"{self.path} line 1: no column {name!r} among {', '.join(self.names)}; "
                "expected the header line of the released file"
            )
        return self.names.index(name)

    def complete(
        self, columns: Sequence[int], *, may_be_broken: bool
    ) -> tuple[list[_Line], tuple[str, ...]]:
        """Returns the lines with all these columns and no further text, and the other lines."""
        width = len(self.names) or 1 + max(columns)

        def fits(line: _Line) -> bool:
            return len(line[1]) > max(columns) and not any(line[1][width:])

        complete = [line for line in self.lines if fits(line)]
        broken = [line for line in self.lines if not fits(line)]
        if broken and not (may_be_broken and len(broken) <= MAX_BROKEN_SHARE * len(self.lines) + 1):
            number, fields = broken[0]
            raise UserError(
                f"{self.path} line {number}: got {len(fields)} fields, expected {width} separated "
                "by tabs; fix or remove the line"
            )
        return complete, tuple(f"line {number}" for number, _ in broken)


def _read_table(path: pathlib.Path, *, header: bool) -> _Table:
    text = read_text(path)
    numbered = [
        (number, line.removesuffix("\r").split("\t"))
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip("\r")
    ]
    if not numbered:
        raise UserError(f"{path} is empty: expected tab-separated examples")
    names = numbered.pop(0)[1] if header else []
    return _Table(path, names, numbered)


def _paraphrases(table: _Table, lines: list[_Line], *, dev: bool) -> list[_Line]:
    """Selects the train or the dev examples of Microsoft's file, which contains both."""
    folder = table.path.parent
    path = next((folder / name for name in PARAPHRASE_DEV_IDS if (folder / name).is_file()), None)
    if path is None:
        raise UserError(
            f"{table.path} contains train and dev: add {PARAPHRASE_DEV_IDS[0]} to its folder, the "
            "list of the dev pairs (two columns of sentence ids)"
        )
    listed = {tuple(fields[:2]) for _, fields in _read_table(path, header=False).lines}
    first, second = (table.column(name) for name in PARAPHRASE_ID_COLUMNS)
    return [line for line in lines if ((line[1][first], line[1][second]) in listed) == dev]


def _labels(path: pathlib.Path, lines: list[_Line], column: int, task: GlueTask) -> np.ndarray:
    if not task.labels:
        scores = [_score(path, number, fields[column]) for number, fields in lines]
        return np.array(scores, np.float32)
    known = {label: value for value, label in enumerate(task.labels)}
    for number, fields in lines:
        if fields[column] not in known:
            raise UserError(
                f"{path} line {number}: label: got {fields[column]!r}, expected one of "
                f"{', '.join(task.labels)}"
            )
    return np.array([known[fields[column]] for _, fields in lines], np.int32)


def _score(path: pathlib.Path, number: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = np.nan
    if not 0.0 <= score <= HIGHEST_SCORE:
        raise UserError(f"{path} line {number}: score: got {text!r}, expected a number in [0, 5]")
    return score


def _indices(table: _Table, lines: list[_Line]) -> list[str]:
    """Returns the column `index` (QQP: `id`) if the file has it, else counts from 0."""
    for name in ("index", "id"):
        if name in table.names:
            column = table.names.index(name)
            return [fields[column] for _, fields in lines]
    return [str(number) for number in range(len(lines))]


def read(data: str, task: GlueTask) -> dict[str, SequenceExamples]:
    """Reads the available splits of a task, by name.

    Args:
      data: The folder with `CoLA/`, `SST-2/` ...; or `tfds:DIR`, where DIR is a data folder of
        tensorflow-datasets with `glue/<task>` prepared as ArrayRecord.
      task: The task.

    Raises:
      UserError: train or another labelled split is missing, or a file is malformed.
    """
    scheme, _, directory = data.partition(":")
    if scheme == "tfds" and directory:
        return _read_prepared(directory, task)
    return read_tsv(data, task)


def _read_prepared(directory: str, task: GlueTask) -> dict[str, SequenceExamples]:
    """Reads the available splits of `directory/glue/<task>/<newest version>`.

    Raises:
      UserError: the dataset is not prepared, not stored as ArrayRecord, or lacks a required split.
    """
    builders = {task.name: _builder(pathlib.Path(directory), task.name)}
    splits = {}
    for split in task.splits:
        config, _, name = split.tfds.rpartition(":")
        if config and (pathlib.Path(directory) / "glue" / config).is_dir():
            builders.setdefault(config, _builder(pathlib.Path(directory), config))
        builder = builders.get(config or task.name)
        if builder is not None and name in builder.info.splits:
            splits[split.name] = _read_prepared_split(builder, name, task, labelled=split.labelled)
        elif split.labelled:
            raise UserError(
                f"no split {name!r} in {directory}/glue/{task.name}, which has "
                f"{', '.join(builder.info.splits)}; prepare the dataset again"
            )
    return splits


def _builder(directory: pathlib.Path, config: str):
    """Opens the newest prepared version of `glue/<config>`."""
    import tensorflow_datasets as tfds

    versions = [path.parent for path in (directory / "glue" / config).glob("*/dataset_info.json")]
    if not versions:
        raise UserError(
            f"no prepared dataset in {directory}/glue/{config}: prepare it with "
            f"tfds build glue/{config} --data_dir {directory} --file_format array_record"
        )
    newest = max(versions, key=lambda path: [int(part) for part in path.name.split(".")])
    builder = tfds.builder_from_directory(newest)
    if builder.info.file_format is not tfds.core.FileFormat.ARRAY_RECORD:
        raise UserError(
            f"{newest} is stored as {builder.info.file_format.value}, expected array_record: "
            "prepare it again with --file_format array_record"
        )
    return builder


def _read_prepared_split(builder, name: str, task: GlueTask, *, labelled: bool) -> SequenceExamples:
    """Reads one split, sorted by `idx`: tensorflow-datasets shuffles while preparing."""
    source = builder.as_data_source(split=name)
    rows = []
    for start in range(0, len(source), _ROWS_PER_READ):
        rows += source.__getitems__(range(start, min(start + _ROWS_PER_READ, len(source))))
    if not rows:
        raise UserError(f"{builder.data_dir}: split {name!r} is empty; prepare it again")
    missing = [column for column in (*task.tfds_texts, "label", "idx") if column not in rows[0]]
    if missing:
        raise UserError(
            f"{builder.data_dir} has no feature {missing[0]!r}: expected glue/{task.name} with "
            f"{', '.join((*task.tfds_texts, 'label', 'idx'))}"
        )
    rows.sort(key=lambda row: int(row["idx"]))
    values = np.array([row["label"] for row in rows])
    has_labels = labelled or (values != -1).any()
    return SequenceExamples(
        texts=tuple([row[column].decode("utf-8") for row in rows] for column in task.tfds_texts),
        labels=_prepared_labels(builder, values, name, task) if has_labels else None,
        indices=[str(int(row["idx"])) for row in rows],
    )


def _prepared_labels(builder, values: np.ndarray, name: str, task: GlueTask) -> np.ndarray:
    """Checks and converts labels of a labelled split; in others every label is -1."""
    highest = len(task.labels) - 1 if task.labels else HIGHEST_SCORE
    wrong = np.flatnonzero(~((values >= 0) & (values <= highest)))
    if wrong.size:
        raise UserError(
            f"{builder.data_dir} split {name!r}, example {wrong[0]}: label: got "
            f"{values[wrong[0]]}, expected a value in [0, {highest}]"
        )
    return values.astype(np.int32 if task.labels else np.float32)
