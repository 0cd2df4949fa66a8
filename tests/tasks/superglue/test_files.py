"""SuperGLUE files: rows of every layout, test files without labels, malformed records."""

import pytest

from bertjax.errors import UserError
from bertjax.tasks.superglue import files
from bertjax.tasks.superglue.table import TASKS, superglue_task


def read(data, name):
    return files.read(str(data), superglue_task(name))


@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_every_task_has_its_splits_and_test_is_unlabelled(data, name):
    splits = read(data, name)
    more = ["diagnostic_broad", "diagnostic_gender"] if name == "rte" else []
    assert list(splits) == ["train", "dev", "test", *more]
    labelled, hidden = splits["dev"].rows, splits["test"].rows
    assert [row.texts for row in labelled] == [row.texts for row in hidden]
    assert {row.label for row in hidden} == {None}
    assert splits["test"].labels is None
    assert splits["dev"].labels.tolist() == [row.label for row in labelled]


def test_pairs(data):
    (first, second) = read(data, "boolq")["dev"].rows
    assert first.texts == (
        "The old mill is by the river. Anna came from the north.",
        "is the mill old",
    )
    assert (first.label, second.label, second.key) == (1, 0, (1,))
    assert read(data, "cb")["dev"].labels.tolist() == [2, 1, 0]
    assert read(data, "rte")["dev"].labels.tolist() == [0, 1]
    broad = read(data, "rte")["diagnostic_broad"].rows
    assert [row.texts for row in broad] == [
        ("It is old.", "It is new."),
        ("It rained.", "It rained."),
    ]


def test_copa_asks_for_a_cause_or_an_effect(data):
    (cause, effect) = read(data, "copa")["dev"].rows
    assert cause.texts == ("The river was high.", "because", "It rained.", "The mill was old.")
    assert effect.texts[1] == "so"
    assert (cause.label, effect.label) == (0, 1)


def test_multirc_has_a_row_for_each_answer(data):
    rows = read(data, "multirc")["dev"].rows
    assert [row.key for row in rows] == [(4, 7, 20), (4, 7, 21), (4, 7, 22), (4, 8, 23), (4, 8, 24)]
    assert [row.label for row in rows] == [1, 0, 1, 0, 1]
    assert rows[1].texts == (
        "Anna came from Oslo. She met Berg in Lyon.",
        "Where was Anna? the mill",
    )


def test_record_has_a_row_for_each_different_entity(data):
    rows = read(data, "record")["dev"].rows
    assert [row.candidate for row in rows] == ["Anna Berg", "Oslo", "Lyon"] * 2
    assert [row.key for row in rows] == [(11,)] * 3 + [(12,)] * 3
    assert [row.label for row in rows] == [0, 0, 1, 1, 0, 0]
    assert rows[2].texts[1] == "She now lives in Lyon."
    assert rows[2].answers == ("Lyon",)


def marked(row):
    return [row.texts[number][begin:end] for number, begin, end in row.spans]


def test_spans_of_words(data):
    (row,) = read(data, "wic")["dev"].rows
    assert marked(row) == ["mill", "mill"]
    assert row.spans == ((0, 8, 12), (1, 23, 27))
    first, second = read(data, "wsc")["dev"].rows
    assert marked(first) == ["Anna Berg", "she"]
    assert marked(second) == ["Berg", "He"]  # without the full stop of the word, in any case
    assert (first.label, second.label) == (1, 0)


def change(folder, **fields):
    def apply(records):
        records[folder][0].update(fields)

    return apply


def change_in(folder, *path, **fields):
    def apply(records):
        node = records[folder][0]
        for name in path:
            node = node[name]
        node.update(fields)

    return apply


def remove(folder, name, number=0):
    def apply(records):
        del records[folder][number][name]

    return apply


ENTITY = ("passage", "entities", 1)
MALFORMED = [
    ("boolq", change("BoolQ", label="maybe"), r"label: got 'maybe', expected one of false, true;"),
    ("cb", change("CB", label=1), r"label: got 1, expected one of entailment, contradiction, n"),
    ("cb", remove("CB", "hypothesis"), r"has no 'hypothesis': got 'premise', 'idx', 'label'"),
    ("cb", remove("CB", "label", 1), r"val.jsonl:2: got no label, expected labels in all"),
    ("cb", change("CB", idx=2), r"val.jsonl:3: idx 2 occurs at .*val.jsonl:1 too; remove one"),
    ("copa", change("COPA", question="why"), r"question: got 'why', expected cause or effect;"),
    ("copa", change("COPA", label=2), r"label: got 2, expected one of 0, 1; fix the file"),
    (
        "multirc",
        change_in("MultiRC", "passage", questions=[]),
        r"val.jsonl has no questions: expected one or more",
    ),
    (
        "record",
        change_in("ReCoRD", "qas", 1, query="X left."),
        r"query 12: got 'X left.', expected a text with @placeholder; fix the file",
    ),
    (
        "record",
        change_in("ReCoRD", *ENTITY, end=99),
        r"entity: got the characters from 15 to 100, expected a range in the 57 characters",
    ),
    ("record", change_in("ReCoRD", *ENTITY, end=3), r"entity: got the characters from 15 to 4, e"),
    ("record", change_in("ReCoRD", "passage", entities=[]), r"got no entities, expected one or m"),
    ("record", change_in("ReCoRD", "qas", 0, answers=[]), r"query 11: got no answer, expected on"),
    ("wic", change("WiC", end2=99), r"word: got the characters from 23 to 99, expected a range i"),
    (
        "wsc",
        change_in("WSC", "target", span2_index=10),
        r"span2: got the words from 10 to 10 \('she'\), expected some of the 10 words",
    ),
]


@pytest.mark.parametrize(("name", "apply", "message"), MALFORMED)
def test_a_malformed_record_is_one_line(data, records, put, name, apply, message):
    apply(records)
    folder = superglue_task(name).folder
    put(data / folder / "val.jsonl", records[folder])
    with pytest.raises(UserError, match=message) as caught:
        read(data, name)
    assert "\n" not in str(caught.value)


def test_missing_files_name_the_layout(data, tmp_path):
    (data / "WiC" / "val.jsonl").unlink()
    with pytest.raises(UserError, match=r"no val.jsonl in .*WiC: wic requires its dev split;"):
        read(data, "wic")
    (data / "BoolQ").rename(data / "boolq")
    with pytest.raises(UserError, match=r"no BoolQ/ in .* \(found CB, COPA, .*BoolQ/train.jsonl,"):
        read(data, "boolq")
    with pytest.raises(UserError, match=r"\(found no SuperGLUE task\)"):
        read(tmp_path / "nowhere", "boolq")
    (data / "CB" / "val.jsonl").write_text("premise\thypothesis\n")
    with pytest.raises(UserError, match=r"val.jsonl:1: got 'premise.*', expected one JSON object;"):
        read(data, "cb")
