"""Read GLUE datasets prepared by tensorflow-datasets as ArrayRecord, without TensorFlow."""

import pathlib

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.glue.table import HIGHEST_SCORE, GlueTask
from bertjax.tasks.sequence.examples import SequenceExamples

_ROWS_PER_READ = 4096


def read(directory: str, task: GlueTask) -> dict[str, SequenceExamples]:
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
            splits[split.name] = _read_split(builder, name, task, labelled=split.labelled)
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


def _read_split(builder, name: str, task: GlueTask, *, labelled: bool) -> SequenceExamples:
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
    return SequenceExamples(
        texts=tuple([row[column].decode("utf-8") for row in rows] for column in task.tfds_texts),
        labels=_labels(builder, values, name, task) if labelled or (values != -1).any() else None,
        indices=[str(int(row["idx"])) for row in rows],
    )


def _labels(builder, values: np.ndarray, name: str, task: GlueTask) -> np.ndarray:
    """Checks and converts labels of a labelled split; in others every label is -1."""
    highest = len(task.labels) - 1 if task.labels else HIGHEST_SCORE
    wrong = np.flatnonzero(~((values >= 0) & (values <= highest)))
    if wrong.size:
        raise UserError(
            f"{builder.data_dir} split {name!r}, example {wrong[0]}: label: got "
            f"{values[wrong[0]]}, expected a value in [0, {highest}]"
        )
    return values.astype(np.int32 if task.labels else np.float32)
