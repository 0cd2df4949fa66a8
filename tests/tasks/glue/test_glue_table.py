"""The table of GLUE tasks against published figures."""

import pytest

from bertjax.errors import UserError
from bertjax.metrics import classification
from bertjax.tasks.glue.table import GLUE, TASKS, glue_task


def test_all_nine_tasks_with_their_classes():
    assert {task.name: task.num_labels for task in GLUE} == {
        "cola": 2,
        "sst2": 2,
        "mrpc": 2,
        "stsb": 1,
        "qqp": 2,
        "mnli": 3,
        "qnli": 2,
        "rte": 2,
        "wnli": 2,
    }


def test_every_file_of_the_evaluation_server_has_a_test_split():
    servers = {split.server for task in GLUE for split in task.splits if not split.labelled}
    assert servers == {
        "CoLA",
        "SST-2",
        "MRPC",
        "STS-B",
        "QQP",
        "MNLI-m",
        "MNLI-mm",
        "QNLI",
        "RTE",
        "WNLI",
        "AX",
    }


@pytest.mark.parametrize("task", GLUE, ids=lambda task: task.name)
def test_rows_are_consistent(task):
    assert task.splits[0].name == "train"
    assert [split.name for split in task.splits if split.name == "dev"] == ["dev"]
    assert all(callable(getattr(classification, name)) for name in task.metrics)
    assert {len(split.texts) for split in task.splits} == {len(task.tfds_texts)}
    assert len({split.name for split in task.splits}) == len(task.splits)


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown GLUE task 'mrcp': did you mean 'mrpc'\?"):
        glue_task("mrcp")


def test_classes_are_found_whatever_their_spelling_and_order():
    mnli, sst2 = glue_task("mnli"), glue_task("sst2")
    assert mnli.order(("CONTRADICTION", "NEUTRAL", "ENTAILMENT")) == (2, 1, 0)
    assert mnli.order(("neutral", "Contra-diction ", "en_tailment")) == (2, 0, 1)
    assert sst2.order(("1", "0")) == sst2.order(("POSITIVE", "Negative")) == (1, 0)
    for names in (("positive", "0"), ("positive",), ("good", "bad"), ("negative", "Negative")):
        with pytest.raises(
            UserError, match=r"classes of sst2: got .*, expected negative, positive"
        ):
            sst2.order(names)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_class_has_one_name(task):
    known = [names for names in (task.labels, task.names) if names]
    assert {len(names) for names in known} <= {task.num_labels}
    assert all(task.order(names) == tuple(range(len(names))) for names in known)
    assert bool(task.names) == (task.labels == ("0", "1"))


def test_names_to_print_are_in_the_order_of_the_table():
    task = glue_task("sst2")
    assert task.class_names(()) == ("0", "1")
    assert task.class_names(("NEGATIVE", "POSITIVE")) == ("NEGATIVE", "POSITIVE")
    with pytest.raises(UserError, match="got POSITIVE, NEGATIVE, expected them in the order neg"):
        task.class_names(("POSITIVE", "NEGATIVE"))
