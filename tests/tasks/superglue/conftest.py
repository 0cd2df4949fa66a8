"""A folder of all SuperGLUE tasks in the released layout, with invented records."""

import copy
import json

import pytest

MILL = "The old mill is by the river. Anna came from the north."
NEWS = "Anna Berg left Oslo for Lyon.\n@highlight\nAnna Berg is old"
PARAGRAPH = "Anna came from Oslo. She met Berg in Lyon."


def entity(text, name):
    start = text.index(name)
    return {"start": start, "end": start + len(name) - 1}


ENTITIES = [entity(NEWS, name) for name in ("Anna Berg", "Oslo", "Lyon")]
ENTITIES.append({"start": NEWS.rindex("Anna Berg"), "end": NEWS.rindex("Anna Berg") + 8})

RECORDS = {
    "BoolQ": [
        {"question": "is the mill old", "passage": MILL, "idx": 0, "label": True},
        {"question": "did anna come from oslo", "passage": MILL, "idx": 1, "label": False},
    ],
    "CB": [
        {"premise": "It is old.", "hypothesis": "the mill is old", "idx": 0, "label": "neutral"},
        {"premise": "He left.", "hypothesis": "he came", "idx": 1, "label": "contradiction"},
        {"premise": "He came.", "hypothesis": "he came", "idx": 2, "label": "entailment"},
    ],
    "COPA": [
        {
            "premise": "The river was high.",
            "choice1": "It rained.",
            "choice2": "The mill was old.",
            "question": "cause",
            "idx": 0,
            "label": 0,
        },
        {
            "premise": "Anna left Oslo.",
            "choice1": "The river was high.",
            "choice2": "She came to Lyon.",
            "question": "effect",
            "idx": 1,
            "label": 1,
        },
    ],
    "MultiRC": [
        {
            "idx": 4,
            "version": 1.1,
            "passage": {
                "text": PARAGRAPH,
                "questions": [
                    {
                        "question": "Where was Anna?",
                        "idx": 7,
                        "answers": [
                            {"text": "Oslo", "idx": 20, "label": 1},
                            {"text": "the mill", "idx": 21, "label": 0},
                            {"text": "Lyon", "idx": 22, "label": 1},
                        ],
                    },
                    {
                        "question": "Whom did she meet?",
                        "idx": 8,
                        "answers": [
                            {"text": "nobody", "idx": 23, "label": 0},
                            {"text": "Berg", "idx": 24, "label": 1},
                        ],
                    },
                ],
            },
        }
    ],
    "ReCoRD": [
        {
            "source": "invented",
            "idx": 3,
            "passage": {"text": NEWS, "entities": ENTITIES},
            "qas": [
                {
                    "query": "She now lives in @placeholder.",
                    "idx": 11,
                    "answers": [entity(NEWS, "Lyon") | {"text": "Lyon"}],
                },
                {
                    "query": "@placeholder left the north.",
                    "idx": 12,
                    "answers": [entity(NEWS, "Anna Berg") | {"text": "Anna Berg"}],
                },
            ],
        }
    ],
    "RTE": [
        {"premise": MILL, "hypothesis": "The mill is old.", "idx": 0, "label": "entailment"},
        {"premise": MILL, "hypothesis": "Anna left.", "idx": 1, "label": "not_entailment"},
    ],
    "WiC": [
        {
            "word": "mill",
            "sentence1": "The old mill turns.",
            "sentence2": "They mill about by the mill.",
            "start1": 8,
            "end1": 12,
            "start2": 23,
            "end2": 27,
            "idx": 0,
            "label": True,
            "version": 1.1,
        }
    ],
    "WSC": [
        {
            "text": "Anna Berg met her friend after she came to Oslo.",
            "target": {
                "span1_index": 0,
                "span1_text": "Anna Berg",
                "span2_index": 6,
                "span2_text": "she",
            },
            "idx": 0,
            "label": True,
        },
        {
            "text": "Anna met Berg. He came from Lyon.",
            "target": {
                "span1_index": 2,
                "span1_text": "berg",
                "span2_index": 3,
                "span2_text": "He",
            },
            "idx": 1,
            "label": False,
        },
    ],
}
DIAGNOSTICS = {
    "AX-b": [
        {"sentence1": "It is old.", "sentence2": "It is new.", "idx": 0, "logic": "negation"},
        {"sentence1": "It rained.", "sentence2": "It rained.", "idx": 1, "logic": "identity"},
    ],
    "AX-g": [{"premise": "Anna met Berg.", "hypothesis": "Berg is old.", "idx": 0}],
}


def without_labels(node):
    """The record as in a released test file."""
    if isinstance(node, list):
        return [without_labels(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {name: without_labels(each) for name, each in node.items() if name != "label"}
    if "query" in found:
        del found["answers"]
    return found


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, records)) + "\n")


@pytest.fixture
def records():
    """The labelled records of each task by its folder, which a test may change."""
    return copy.deepcopy(RECORDS)


@pytest.fixture
def put():
    """Writes records as JSON lines."""
    return write_lines


@pytest.fixture
def data(tmp_path, records):
    """The folder of all tasks, with a test file without labels, and both diagnostic sets."""
    folder = tmp_path / "superglue"
    for name, labelled in records.items():
        for split in ("train", "val"):
            write_lines(folder / name / f"{split}.jsonl", labelled)
        write_lines(folder / name / "test.jsonl", without_labels(labelled))
    for name, some in DIAGNOSTICS.items():
        write_lines(folder / name / f"{name}.jsonl", some)
    return folder
