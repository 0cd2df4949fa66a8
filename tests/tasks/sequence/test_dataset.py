"""Tables as data sets: splits, columns, kinds of labels, scores, and user errors in one line."""

import json

import numpy as np
import pytest

from bertjax import config as configs
from bertjax.corpus import text
from bertjax.errors import UserError
from bertjax.tasks.sequence import labels
from bertjax.tasks.sequence.dataset import Dataset
from bertjax.tasks.sequence.labels import find_problem_type
from bertjax.tokenizers import tokenizer as tokenizers

ROWS = [('good "film", good', "pos"), ("bad; dull", "neg"), ("fine", "pos"), ("poor", "neg")]


@pytest.fixture(scope="module")
def spec(encoding_spec):
    tokenizer = tokenizers.train(["good bad fine poor film dull"] * 4, vocab_size=40)
    return encoding_spec(tokenizer, padded_lengths=())


@pytest.fixture
def read(tmp_path, spec):
    """Write files, and read them as a data set: `read({name: content}, data field=value)`."""

    def make(files, name="", task=(), **data):
        for path, content in files.items():
            (tmp_path / path).write_text(content, encoding="utf-8")
        config = configs.load_config("task:tiny", {f"data.{key}": data[key] for key in data})
        return Dataset(str(tmp_path / name), dict(config.task) | dict(task), config.data, spec)

    return make


def csv(rows=ROWS, header="text,label", repeat=1):
    cells = [",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) for row in rows]
    return "\n".join([header, *cells * repeat]) + "\n"


def test_a_folder_has_its_own_splits_and_a_file_is_split(read):
    dataset = read({"train.csv": csv(), "valid.csv": csv(ROWS[:2]), "test.csv": csv(ROWS[2:])})
    assert {name: len(each) for name, each in dataset.examples.items()} == {
        "train": 4, "dev": 2, "test": 2,
    }  # fmt: skip
    assert (dataset.dev, dataset.test) == (("dev",), ("test",))
    assert dataset.task_fields["labels"] == ("neg", "pos")
    assert dataset.examples["train"].texts == (['good "film", good', "bad; dull", "fine", "poor"],)
    assert dataset.examples["train"].labels.tolist() == [1, 0, 1, 0]
    assert dataset.batches["dev"].labels.tolist() == [1, 0]
    assert dataset.findings[1] == "labels of train: neg 2, pos 2"
    # As written by a spreadsheet: a byte order mark, the separator, and spaces in the header.
    whole = "\ufeff" + csv([*ROWS, ("odd", "neg")], repeat=4).replace('","', '";"')
    whole = whole.replace("text,label", "text;label ")
    one = read({"all.csv": whole.replace("\ufeff", "\ufeffsep=;\r\n")}, "all.csv")
    found = {name: each.labels.tolist() for name, each in one.examples.items()}
    assert (found["dev"].count(0), found["dev"].count(1), len(found["train"])) == (1, 1, 18)
    texts = [each.texts[0] for each in one.examples.values()]
    assert sorted(texts[0] + texts[1]) == sorted([*(text for text, _ in ROWS), "odd"] * 4)
    assert "dev is 10.0% of the rows, about the same share" in one.findings[-1]


def test_pairs_scores_and_hidden_labels(read):
    rows = [{"premise": "good", "hypothesis": "fine", "score": score} for score in (0.5, 2, 5)]
    hidden = [row | {"score": None} for row in rows]
    lines = {"train": rows, "dev": rows, "test": hidden}
    files = {f"{name}.jsonl": "\n".join(map(json.dumps, own)) for name, own in lines.items()}
    dataset = read(files)
    assert dataset.task_fields["problem_type"] == "regression"
    assert dataset.task_fields["texts"] == ("premise", "hypothesis")
    assert dataset.batches["train"].labels.tolist() == [0.5, 2.0, 5.0]
    assert dataset.examples["test"].labels is None
    assert dataset.score("test", np.ones((3, 1))) == {}
    values = dataset.score("dev", np.array([[1.0], [2.0], [5.5]]))
    assert values["mean_absolute_error"] == pytest.approx(1 / 3)
    named = {f"dev/{name}": value for name, value in values.items()}
    assert dataset.headline(named) == {"dev/score": values["pearson"]}
    errors = read(files, task={"eval_metrics": ("mean_absolute_error",)})
    assert errors.headline(named) == {"dev/score": pytest.approx(-1 / 3)}


def test_several_labels_are_lists_or_separated(read):
    lists = "\n".join(
        json.dumps({"text": text, "labels": names})
        for text, names in (("good", ["b", "a"]), ("bad", []), ("fine", ["b"]))
    )
    dataset = read({"train.jsonl": lists, "dev.jsonl": lists})
    cells = "text\tlabels\ngood\tb|a\nbad\t\nfine\t b |\n"
    same = read({"t.tsv": cells}, "t.tsv", label_separator="|")
    quoted = 'text,labels\ngood,"[""b"",""a""]"\nbad,[]\nfine,"[""b""]"\n'
    json_cells = read({"t.csv": quoted}, "t.csv")
    assert dataset.task_fields == same.task_fields == json_cells.task_fields
    assert dataset.task_fields["problem_type"] == "multi_label_classification"
    assert dataset.batches["train"].labels.tolist() == [[1, 1], [0, 0], [0, 1]]
    found = dataset.score("dev", np.array([[1.0, 1], [-1, 1], [-1, 1]]))
    assert found == pytest.approx(
        {"micro_f1": 6 / 7, "macro_f1": (1 + 4 / 5) / 2, "accuracy": 2 / 3}
    )


def test_kinds_of_labels():
    assert find_problem_type(["0", "1", "10"], "") == "single_label_classification"
    assert find_problem_type([True, False], "") == "single_label_classification"
    assert find_problem_type(["1", "2.5"], "") == "regression"
    assert find_problem_type(["1.5", "high"], "") == "single_label_classification"


def test_whole_numbers_are_the_same_class_in_any_spelling(read):
    rows = [("x", "1"), ("y", "0.0"), ("z", "1.0"), ("w", "10")]
    dataset = read({"train.csv": csv(rows), "dev.csv": csv([("x", "10.00")])})
    assert dataset.task_fields["labels"] == ("0", "1", "10")
    assert dataset.examples["train"].labels.tolist() == [1, 0, 1, 2]
    assert dataset.examples["dev"].labels.tolist() == [2]
    versions = [("x", "1.05"), ("y", "1.0"), ("z", "beta")]
    dataset = read({"a.csv": csv(versions, repeat=2)}, "a.csv")
    assert dataset.task_fields["labels"] == ("1.0", "1.05", "beta")
    assert labels.to_array([["1.0"]], ("1", "1.0"), "single_label_classification", "x") == [1]


def test_bytes_are_texts_in_utf_8(read, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = [["ä".encode(), b"b"] * 2, [b"pos", b"neg"] * 2, [b"\xff"] * 4]
    table = pa.table([pa.array(each, pa.binary()) for each in texts], ["text", "label", "image"])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert list(text.read_documents([str(tmp_path / "a.parquet")])) == ["ä", "b"] * 2  # as prepare
    dataset = read({}, "a.parquet")
    assert set(dataset.examples["train"].texts[0]) == {"ä", "b"}
    assert dataset.task_fields["labels"] == ("neg", "pos")
    for column in ("text", "label"):
        with pytest.raises(UserError, match="bytes that are not UTF-8, expected"):
            read({}, "a.parquet", **{column: "image"})


def test_predictions_are_written_with_tables_of_the_classes(read, tmp_path):
    dataset = read({"train.csv": csv(), "dev.csv": csv()})
    logits = np.array([[0.0, 2], [0, 1], [0, 1], [1, 0]])
    dataset.write("dev", logits, tmp_path / "out")
    first = json.loads((tmp_path / "out" / "dev.jsonl").read_text().splitlines()[0])
    chance = pytest.approx(1 / (1 + np.exp(-2)))
    assert first == {"text": ROWS[0][0], "true": "pos", "label": "pos", "probability": chance}
    table = (tmp_path / "out" / "dev_classes.txt").read_text().splitlines()
    assert [line.split() for line in table[:3]] == [
        ["class", "precision", "recall", "F1", "examples"],
        ["neg", "1.0000", "0.5000", "0.6667", "2"],
        ["pos", "0.6667", "1.0000", "0.8000", "2"],
    ]
    assert table[-1] == "1 of 2  neg -> pos"
    matrix = (tmp_path / "out" / "dev_confusion.tsv").read_text().splitlines()
    assert matrix == ["true \\ predicted\tneg\tpos", "neg\t1\t1", "pos\t0\t2"]


BAD = {
    "no file or folder": ({}, "none.csv", {}),
    "no training file in .*: got dev.csv, expected train": ({"dev.csv": csv()}, "", {}),
    "got 2 files for the train split": ({"train.csv": csv(), "train.tsv": csv()}, "", {}),
    "a.txt: got a file of format text, expected a table": ({"a.txt": "x"}, "a.txt", {}),
    "a.csv has no rows": ({"a.csv": "text,label\n"}, "a.csv", {}),
    "a.csv is empty": ({"a.csv": ""}, "a.csv", {}),
    "column 'text' occurs twice": ({"a.csv": "text,text\nx,y\n"}, "a.csv", {}),
    "no column 'txt': got text, label; choose one with --text": (
        {"a.csv": csv()}, "a.csv", {"text": "txt"},
    ),
    "no column 'kind': got text, label; choose one with --label": (
        {"a.csv": csv()}, "a.csv", {"label": "kind"},
    ),
    "cannot detect the column of the texts among a, b; .* --text": (
        {"a.csv": "a,b\nx,y\n"}, "a.csv", {},
    ),
    "cannot detect the column of the labels among text, a, b; .* --label": (
        {"a.csv": "text,a,b\nx,y,z\n"}, "a.csv", {},
    ),
    "a.csv:3: the label is empty": ({"a.csv": "text,label\nx,y\nz,\n"}, "a.csv", {}),
    "a.csv:2: column 'text' is empty": ({"a.csv": "text,label\n,y\nz,x\n"}, "a.csv", {}),
    "a.jsonl:1: column 'tokens' has lists, expected texts; .* task:tags": (
        {"a.jsonl": "".join(f'{{"tokens": ["My"], "label": "{kind}"}}\n' for kind in "xxyy")},
        "a.jsonl",
        {"text": "tokens"},
    ),
    "dev.csv:2: label: got 'new', which no training example has": (
        {"train.csv": csv(), "dev.csv": csv([("x", "new")])}, "", {},
    ),
    "a.jsonl:2: the label is empty": (
        {"a.jsonl": '{"text": "x", "label": 1}\n{"text": "y", "label": NaN}\n'}, "a.jsonl", {},
    ),
    "a.csv:3: label: got 'n/a', expected a number as in 2 of 3 rows.*=single_label": (
        {"a.csv": "text,label\nx,1.5\ny,n/a\nz,3\n"}, "a.csv", {},
    ),
    "a.csv:4: label: got 'bad', expected a number as in 18 of 19 rows": (
        {"a.csv": "text,label\nx,1.5\ny,2\nz,bad\n" + "w,3\n" * 16}, "a.csv", {},
    ),
    "a.csv:3: label: got '4,5', which looks like .* decimal comma, expected 4.5": (
        {"a.csv": "text;label\nx;4\ny;4,5\n"}, "a.csv", {},
    ),
    "a.csv:2: column 'label': got .*, which looks like a Python list, expected JSON": (
        {"a.csv": "text,label\nx,\"['a', 'b']\"\ny,\"['a']\"\n"}, "a.csv", {},
    ),
    r"a.csv:1: got one column, 'text\|label', whose separator seems to be '\|'": (
        {"a.csv": "text|label\nx|y, or\n"}, "a.csv", {},
    ),
    "class 'y' has 1 example, expected 2 or more": (
        {"a.csv": "text,label\nx,y\nz,v\nw,v\n"}, "a.csv", {},
    ),
    "has the classes y, expected several": ({"a.csv": "text,label\nx,y\n"}, "a.csv", {}),
    "a.csv:3: label: got 'old', expected a number": (
        {"a.csv": "text,label\nx,1.5\nz,old\n"}, "a.csv", {"task": {"problem_type": "regression"}},
    ),
    "label_separator: got ';' with .*single_label": (
        {"a.csv": csv()},
        "a.csv",
        {"label_separator": ";", "task": {"problem_type": "single_label_classification"}},
    ),
    "label_separator: got ';', expected none, as the labels of 'labels' are lists": (
        {"a.jsonl": '{"text": "x", "labels": ["y"]}'}, "a.jsonl", {"label_separator": ";"},
    ),
    "split_seed: got 3, expected none, as .* has a dev file": (
        {"train.csv": csv(), "dev.csv": csv()}, "", {"split_seed": 3},
    ),
    "eval_metrics: got 'pearson' for 2 classes": (
        {"a.csv": csv()}, "a.csv", {"task": {"eval_metrics": ("pearson",)}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_mismatches_of_tables_are_one_line(read, message):
    files, name, options = BAD[message]
    with pytest.raises(UserError, match=message) as error:
        read(files, name, **options)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_folder_of_datasets_has_the_names_of_its_classes(read, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    feature = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": feature}})}
    table = pyarrow.table({"text": ["x", "y", "z"], "label": [1, 0, 1]})
    table = table.replace_schema_metadata(metadata)
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        with pyarrow.ipc.new_stream(tmp_path / split / "data.arrow", table.schema) as writer:
            writer.write_table(table)
        state = {"_data_files": [{"filename": "data.arrow"}]}
        (tmp_path / split / "state.json").write_text(json.dumps(state))
    dataset = read({"dataset_dict.json": json.dumps({"splits": ["train", "validation"]})})
    assert dataset.task_fields["labels"] == ("bad", "good")
    assert dataset.examples["dev"].labels.tolist() == [1, 0, 1]
    parquet = tmp_path / "parquet" / "data"
    parquet.mkdir(parents=True)
    for part in range(2):
        name = parquet / f"train-0000{part}-of-00002.parquet"
        pytest.importorskip("pyarrow.parquet").write_table(table, name)
    sharded = read({}, "parquet")
    assert len(sharded.examples["train"]) + len(sharded.examples["dev"]) == 6
    assert sharded.task_fields["labels"] == ("bad", "good")
