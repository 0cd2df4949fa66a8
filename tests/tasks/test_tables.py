"""Tables of words, spans, choices and answers: rows, mistakes, and from fine-tuning to answers."""

import csv
import dataclasses
import json
import pathlib

import numpy as np
import pytest

import bertjax
from bertjax.commands import export, finetune, predict
from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.tasks import tables
from bertjax.tasks.answers import dataset as answers
from bertjax.tasks.choices import rows as choices
from bertjax.tasks.tags import rows as tags

SAVED = pathlib.Path(__file__).resolve().parents[1] / "data_fixtures" / "saved_runs"


def table(**columns) -> Table:
    size = len(next(iter(columns.values())))
    return Table("t.jsonl", columns, [f"t.jsonl:{row}" for row in range(1, 1 + size)])


@pytest.mark.parametrize(
    ("read", "columns", "message"),
    [
        (tags.read_tagged, {"a": ["x y"], "b": ["O"]}, "2 words in 'a' and 1 tags in 'b'"),
        (tags.read_tagged, {"a": [[]], "b": [[]]}, "column 'a' is empty"),
        (tags.read_spans, {"a": [" "], "b": [[]]}, "column 'a' is empty, expected a text"),
        (
            tags.read_spans,
            {"a": ["ab"], "b": [[{"start": 1, "end": 3, "label": "X"}]]},
            "span 1 to 3 of a text with 2 characters",
        ),
        (
            tags.read_spans,
            {
                "a": ["ab cd"],
                "b": [
                    [
                        {"start": 0, "end": 4, "label": "X"},
                        {"start": 3, "end": 5, "label": "Y"},
                    ]
                ],
            },
            r"spans \(0, 4\) and \(3, 5\) share the word 'cd'",
        ),
        (
            lambda found, a, b: answers.read_questions(found, (a, "c"), b),
            {"a": ["q"], "c": ["some text"], "b": ["texts"]},
            "the answer 'texts', which is not in its context",
        ),
        (
            lambda found, a, b: choices.read(found, (a,), ("c",), b),
            {"a": ["q"], "c": [["x", "y"]], "b": ["z"]},
            "label: got 'z', expected the text of one choice, an index below 2",
        ),
        (
            lambda found, a, b: choices.read(found, (a,), ("c",), b),
            {"a": ["q", "r"], "c": [["x", "y"], ["x", None, "z"]], "b": [0, 1]},
            "t.jsonl:2: a choice is empty",
        ),
        (
            lambda found, a, b: tables.choose_column(found, "z", (), "text"),
            {"a": ["q"], "b": [0]},
            "no column 'z': got a, b",
        ),
    ],
)
def test_a_mistake_is_one_line(read, columns, message):
    with pytest.raises(UserError, match=message) as caught:
        read(table(**columns), "a", "b")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("has_types", [True, False])
def test_only_formats_without_types_have_lists_in_texts(has_types):
    """An answer or a choice in brackets is a text; in CSV and TSV, where that is possible."""

    def read(**columns):
        return dataclasses.replace(table(**columns), has_types=has_types)

    cells = ["[12]", '["12"]', "[]"] if not has_types else ["[12]", ["12"], []]
    found = answers.read_questions(
        read(q=["1", "2", "3"], c=["see [12]"] * 2 + ["see []"], a=cells), ("q", "c"), "a"
    )
    assert found.answers == [("[12]",), ("12",), ()]
    quoted = '"[""x"", ""[y]""]"'  # TSV of pandas
    columns = {"q": ["1"], "c": [["x", "[y]"] if has_types else quoted], "label": ["[y]"]}
    assert choices.read(read(**columns), ("q",), ("c",), "label").options == [("x", "[y]")]
    words = read(a=["[x] [y]", "[1]"], b=["A B", "A"])
    (first, second) = tags.read_tagged(words, "a", "b")
    assert first.sentence.words == ("[x]", "[y]")
    assert second.sentence.words == ("[1]" if has_types else "1",)


@pytest.mark.parametrize(
    ("kind", "row", "hidden"),
    [
        ("tags", {"words": "the name", "pos_tags": "DET NOUN"}, {}),
        (
            "tags",
            {"text": "the name", "spans": [{"start": 0, "end": 3, "label": "PER"}]},
            {"spans": []},
        ),
        ("choices", {"question": "a", "options": ["x", "y"], "answer": "y"}, {"answer": "-1"}),
        (
            "answers",
            {"question": "a", "context": "the name", "answers": "name"},
            {"answers": {"text": [], "answer_start": []}},
        ),
    ],
)
def test_a_test_split_may_have_no_labels(read_dataset, tmp_path, kind, row, hidden):
    (label,) = list(row)[-1:]
    bare = {name: value for name, value in row.items() if name != label} | hidden
    for name, each in {"train": row, "dev": row, "test": bare}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join([json.dumps(each)] * 2))
    dataset = read_dataset(kind)
    assert dataset.test == ("test",)
    size = len(dataset.batches["test"].pairs)
    width = {"tags": [32], "choices": [], "answers": [81]}[kind]  # 4 n_best_size + 1
    predictions = np.zeros((size, *width), np.int64 if kind == "tags" else np.float32)
    assert dataset.score("test", predictions) == {}
    dataset.write("test", predictions, tmp_path / "out")
    written = (tmp_path / "out" / "test.jsonl").read_text().splitlines()
    assert len(written) == 2
    assert "true" not in json.loads(written[0])


def test_a_dev_split_keeps_groups_together():
    class Rows(list):
        def take(self, kept):
            return Rows(self[i] for i in kept)

    groups = np.arange(40) // 4
    fields = {"validation_fraction": 0.3, "split_seed": None}
    found, (line,) = tables.with_dev(
        "t", {"train": Rows(range(40))}, fields, np.zeros(40, np.float32), groups
    )
    assert len(found["dev"]) == 12
    assert {i // 4 for i in found["dev"]}.isdisjoint(i // 4 for i in found["train"])
    assert "dev is 30.0% of the rows" in line
    # Two of the groups have a row of class 1.
    classes = np.isin(np.arange(40), (33, 38)).astype(np.int32)
    for seed in range(6):
        fields = {"validation_fraction": 0.3, "split_seed": seed}
        found, _ = tables.with_dev("t", {"train": Rows(range(40))}, fields, classes, groups)
        assert sum(classes[i] for i in found["dev"]) == 1
        assert len(found["dev"]) == 12


QUICK = ("spans",)
FORMATS = {"tags": "parquet", "choices": "csv", "answers": "parquet"}
"""Formats other than JSON lines: lists, JSON in cells, and objects."""
STORIES = {
    "tags": (
        {"tokens": ["the", "name", "of", "x"], "tags": ["O", "I-N", "O", "I-X"]},
        ["the name"],
        {"tokens", "tags", "probabilities"},
    ),
    "spans": (
        {"text": "the name of x", "spans": [{"start": 4, "end": 8, "label": "N"}]},
        ["the name"],
        {"text", "spans"},
    ),
    "pos": (
        {"words": "the name", "pos_tags": "DET NOUN"},
        ["the name"],
        {"words", "tags", "probabilities"},
    ),
    "choices": (
        {"question": "a", "options": ["x", "y", "z"], "answer": "y"},
        ['{"question": "a", "choices": ["x", "z"]}'],
        {"question", "choices", "answer", "probabilities"},
    ),
    "answers": (
        {
            "question": "a",
            "context": "the name of x",
            "answers": {"text": ["name"], "answer_start": [4]},
        },
        ["a\tthe name of x"],
        {"question", "context", "answer", "n_best"},
    ),
}
NAMES = {
    "tags": {"0": "O", "1": "B-N", "2": "I-N", "3": "B-X", "4": "I-X"},
    "spans": {"0": "O", "1": "B-N", "2": "I-N"},
    "pos": {"0": "DET", "1": "NOUN"},
}


def write_table(folder: pathlib.Path, form: str, rows: list[dict]) -> pathlib.Path:
    path = folder / f"data.{form}"
    if form == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    elif form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(rows[0])
            for row in rows:
                cells = [
                    each if isinstance(each, str) else json.dumps(each) for each in row.values()
                ]
                writer.writerow(cells)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in STORIES],
)
def test_from_a_table_to_answers_and_an_export(kind, tmp_path, capsys):
    row, lines, keys = STORIES[kind]
    path = write_table(tmp_path, FORMATS.get(kind, "jsonl"), [row] * 12)
    recipe = f"task:{kind if kind in ('choices', 'answers') else 'tags'},tiny"
    run = tmp_path / "run"
    finetune.main(
        [
            *("--config", recipe, "--data", str(path)),
            *("--init", f"random:{SAVED / 'run'}", "--workdir", str(run)),
            *("--config.keep_checkpoints=true", "--config.num_train_epochs=1"),
            "--config.data.padded_lengths=()",
        ]
    )
    results = json.loads((run / "results.json").read_text())
    assert 0 <= results["each_seed"][0]["scores"]["dev/score"] <= 1
    lines_of_dev = (run / "predictions" / "dev.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines_of_dev]
    assert len(written) >= 1
    assert "true" in written[0]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    predict.main(["--model", str(run / "seed_0"), "--input", str(tmp_path / "lines")])
    (answer,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert keys <= answer.keys()
    if kind == "choices":
        assert len(answer["probabilities"]) == 2
        assert sum(answer["probabilities"]) == pytest.approx(1)
    model = bertjax.load(str(run / "seed_0"))
    if kind in NAMES:
        found = model.tag(lines[0])
        assert found == {name.replace("tokens", "words"): value for name, value in answer.items()}
    if kind == "answers":
        assert model.answer("a", "the name of x")["answer"] == answer["answer"]
    export.main(["--model", str(run), "--output", str(tmp_path / "hf")])
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    if kind in NAMES:
        assert config["id2label"] == NAMES[kind]
        capsys.readouterr()
        predict.main(["--model", str(tmp_path / "hf"), "--input", str(tmp_path / "lines")])
        (again,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert ("entities" in again) == (kind != "pos")
        if kind != "spans":
            probabilities = again.pop("probabilities")
            assert probabilities == pytest.approx(found.pop("probabilities"), rel=1e-4)
            assert again == found
    if kind == "choices":
        assert config["num_choices"] == 3
