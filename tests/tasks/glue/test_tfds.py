"""GLUE from TensorFlow Datasets in ArrayRecord files, without TensorFlow."""

import sys

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.glue import files as glue_files
from bertjax.tasks.glue.table import glue_task


def prepare(folder, config, texts, label, splits, file_format="array_record"):
    """Stores `splits`, a dict from name to (texts, label) rows, as `glue/<config>`."""
    import tensorflow_datasets as tfds

    class Glue(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("2.0.0")
        BUILDER_CONFIGS = (tfds.core.BuilderConfig(name=config),)

        def _info(self):
            columns = {name: tfds.features.Text() for name in texts}
            features = tfds.features.FeaturesDict(columns | {"label": label, "idx": np.int32})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            return {name: self._generate_examples(name) for name in splits}

        def _generate_examples(self, name):
            for index, (row, value) in enumerate(splits[name]):
                yield index, dict(zip(texts, row, strict=True)) | {"label": value, "idx": index}

    Glue.__module__ = "glue"  # else the builder looks for its package's files
    Glue(config=config, data_dir=str(folder), file_format=file_format).download_and_prepare()


def classes(*names):
    import tensorflow_datasets as tfds

    return tfds.features.ClassLabel(names=names)


RTE_ROWS = [((f"premise {i} é", f"hypothesis {i}"), i % 2) for i in range(23)]


@pytest.fixture
def rte(tmp_path):
    splits = {"train": RTE_ROWS, "validation": RTE_ROWS[:3], "test": [(("a", "b"), -1)] * 2}
    labels = classes("entailment", "not_entailment")
    prepare(tmp_path, "rte", ("sentence1", "sentence2"), labels, splits)
    return tmp_path


def test_examples_are_in_their_released_order(rte):
    splits = glue_files.read(f"tfds:{rte}", glue_task("rte"))
    assert splits["train"].texts[0] == [row[0] for row, _ in RTE_ROWS]
    assert splits["train"].texts[1] == [row[1] for row, _ in RTE_ROWS]
    assert splits["train"].labels.tolist() == [label for _, label in RTE_ROWS]
    assert splits["train"].indices == [str(i) for i in range(23)]
    assert len(splits["dev"]) == 3
    assert splits["test"].labels is None
    assert "tensorflow" not in sys.modules


def test_the_same_task_is_the_same_in_both_layouts(rte, tmp_path):
    folder = tmp_path / "released" / "RTE"
    folder.mkdir(parents=True)
    spelled = glue_task("rte").labels
    lines = ["index\tsentence1\tsentence2\tlabel"] + [
        f"{i}\t{row[0]}\t{row[1]}\t{spelled[label]}" for i, (row, label) in enumerate(RTE_ROWS)
    ]
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    prepared = glue_files.read(f"tfds:{rte}", glue_task("rte"))["train"]
    released = glue_files.read(str(folder.parent), glue_task("rte"))["train"]
    assert prepared.texts == released.texts
    assert prepared.labels.tolist() == released.labels.tolist()
    assert prepared.labels.dtype == released.labels.dtype
    assert prepared.indices == released.indices


def test_both_dev_sets_of_mnli_and_the_diagnostic(tmp_path):
    labels = classes("entailment", "neutral", "contradiction")
    texts = ("premise", "hypothesis")
    splits = {
        "train": [(("a", "b"), 2)],
        "validation_matched": [(("c", "d"), 0)],
        "validation_mismatched": [(("e", "f"), 1)],
        "test_matched": [(("g", "h"), -1)],
    }
    prepare(tmp_path, "mnli", texts, labels, splits)
    read = glue_files.read(f"tfds:{tmp_path}", glue_task("mnli"))
    assert list(read) == ["train", "dev", "dev_mismatched", "test"]
    prepare(tmp_path, "ax", texts, labels, {"test": [(("i", "j"), -1)]})
    read = glue_files.read(f"tfds:{tmp_path}", glue_task("mnli"))
    assert list(read) == ["train", "dev", "dev_mismatched", "test", "diagnostic"]
    assert read["dev"].texts == (["c"], ["d"])
    assert read["dev_mismatched"].labels.tolist() == [1]
    assert read["diagnostic"].texts == (["i"], ["j"])


def test_scores_are_floats(tmp_path):
    rows = [(("a", "b"), 2.5), (("c", "d"), 5.0)]
    splits = {"train": rows, "validation": rows, "test": [(("a", "b"), -1.0)]}
    prepare(tmp_path, "stsb", ("sentence1", "sentence2"), np.float32, splits)
    read = glue_files.read(f"tfds:{tmp_path}", glue_task("stsb"))
    assert read["train"].labels.dtype == np.float32
    assert read["train"].labels.tolist() == [2.5, 5.0]
    assert read["test"].labels is None


def test_errors_are_named(rte, tmp_path):
    with pytest.raises(UserError, match=r"no prepared dataset in .*glue/cola: prepare it with"):
        glue_files.read(f"tfds:{rte}", glue_task("cola"))
    binary = classes("0", "1")
    rows = [(("a", "b"), 1)]
    prepare(tmp_path, "wnli", ("sentence1", "sentence2"), binary, {"train": rows})
    with pytest.raises(UserError, match=r"no split 'validation' in .*glue/wnli, which has train"):
        glue_files.read(f"tfds:{tmp_path}", glue_task("wnli"))
    hidden = {"train": rows, "validation": [(("a", "b"), -1)]}
    prepare(tmp_path / "hidden", "wnli", ("sentence1", "sentence2"), binary, hidden)
    with pytest.raises(UserError, match=r"split 'validation', example 0: label: got -1, expected"):
        glue_files.read(f"tfds:{tmp_path / 'hidden'}", glue_task("wnli"))
    other = {"train": rows, "validation": rows}
    prepare(tmp_path, "qnli", ("sentence1", "sentence2"), binary, other)
    with pytest.raises(UserError, match=r"has no feature 'question': expected glue/qnli"):
        glue_files.read(f"tfds:{tmp_path}", glue_task("qnli"))


def test_another_storage_format_is_refused(rte):
    path = rte / "glue" / "rte" / "2.0.0" / "dataset_info.json"
    path.write_text(path.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(
        UserError, match=r"stored as tfrecord, expected array_record: prepare it ag"
    ):
        glue_files.read(f"tfds:{rte}", glue_task("rte"))
