"""A table of one's own from fine-tuning to predictions, Hugging Face and back."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import bertjax
from bertjax.commands import evaluate, export, finetune, predict
from bertjax.errors import UserError
from bertjax.huggingface import importing

SAVED = pathlib.Path(__file__).resolve().parents[2] / "data_fixtures" / "saved_runs"
WORDS = {"naming": "name", "calling": "object", "waiting": "async for"}
ROWS = [
    (f"{word} {letter}", f"a {other}", kind)
    for kind, word in WORDS.items()
    for letter in "bcdfghkl"
    for other in ("target", "sign", "result", "type")
]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> pathlib.Path:
    """A run that has learned which word a text has, with three classes that are not balanced."""
    home = tmp_path_factory.mktemp("own")
    rows = [",".join(row) for row in ROWS[:-16]]
    (home / "kinds.csv").write_text("\n".join(["first,second,kind", *rows]) + "\n")
    overrides = {
        "num_train_epochs": 30,
        "early_stopping_patience": 6,
        "max_train_examples": 0,
        "keep_checkpoints": True,
        "optimizer.learning_rate": 0.01,
        "model.initializer_range": 0.2,
        "model.hidden_dropout_prob": 0.0,
        "data.validation_fraction": 0.25,
        "data.padded_lengths": "()",
        "task.class_weights": "('balanced',)",
        "task.eval_metrics": "('macro_f1','matthews')",
    }
    finetune.main(
        [
            *("--config", "task:tiny", "--data", str(home / "kinds.csv")),
            *("--text", "first", "--text_pair", "second", "--label", "kind"),
            *("--init", f"random:{SAVED / 'run'}", "--workdir", str(home / "run")),
            *(f"--config.{name}={value}" for name, value in overrides.items()),
        ]
    )
    return home


def predictions(capsys, model: pathlib.Path, lines: list[str], tmp_path) -> list[dict]:
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    options = ["--input", str(tmp_path / "lines"), "--precision", "float32"]
    predict.main(["--model", str(model), *options])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_fine_tuning_learns_stops_early_and_keeps_the_names(home):
    results = json.loads((home / "run" / "results.json").read_text())
    (result,) = results["each_seed"]
    assert result["scores"]["dev/score"] == result["scores"]["dev/macro_f1"] > 0.9
    assert (
        result["stopped_early_after_epoch"] == result["chosen_epoch"] + 6 == len(result["epochs"])
    )
    task = results["config"]["task"]
    assert task["labels"] == sorted(WORDS)
    assert task["texts"] == ["first", "second"]
    # 24 of 32, 24 of 32 and 12 of 16 examples are trained on.
    assert task["loss_weights"] == pytest.approx([60 / 72, 60 / 72, 60 / 36])
    assert results["examples"] == {"train": 60, "dev": 20}
    written = {path.name for path in (home / "run" / "predictions").iterdir()}
    assert {"dev.jsonl", "dev_classes.txt", "dev_confusion.tsv"} <= written


def test_predictions_survive_hugging_face(home, capsys, tmp_path):
    lines = ["async for m\ta m", json.dumps({"first": "name m", "second": "a m"})]
    own = predictions(capsys, home / "run" / "seed_0", lines, tmp_path)
    assert [answer["label"] for answer in own] == ["waiting", "naming"]
    assert own[0]["first"] == "async for m"
    table = tmp_path / "new.csv"
    table.write_text('kind,second,first\n?,a m,async for m\n,"a ""m"", [1]",name m\n')
    capsys.readouterr()
    predict.main(["--model", str(home / "run" / "seed_0"), "--input", str(table)])
    of_table = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["label"] for answer in of_table] == ["waiting", "naming"]
    assert of_table[1]["second"] == 'a "m", [1]'
    # With the header of the training table, lines are its rows.
    rows = ["kind\tsecond\tfirst", "?\ta m\tasync for m", '\ta "m", [1]\tname m']
    assert predictions(capsys, home / "run" / "seed_0", rows, tmp_path) == [own[0], of_table[1]]
    export.main(["--model", str(home / "run"), "--output", str(home / "hf")])
    config = json.loads((home / "hf" / "config.json").read_text())
    assert config["id2label"] == {"0": "calling", "1": "naming", "2": "waiting"}
    assert config["problem_type"] == "single_label_classification"
    capsys.readouterr()
    again = predictions(capsys, home / "hf", ["async for m\ta m", "name m\ta m"], tmp_path)
    for answer, expected in zip(again, own, strict=True):
        assert answer["probabilities"] == pytest.approx(expected["probabilities"], rel=1e-5)
    with pytest.raises(UserError, match="2 separated by tabs"):
        predictions(capsys, home / "hf", ["one text"], tmp_path)
    found = bertjax.load(str(home / "hf")).classify([("async for m", "a m")])
    assert found[0]["label"] == "waiting"


def test_a_labelled_table_is_scored(home, capsys, tmp_path):
    rows = [
        (first, second, kind if number % 5 else "calling")
        for number, (first, second, kind) in enumerate(ROWS)
    ]
    lines = ["first;second;kind", *(";".join(row) for row in rows)]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    found = bertjax.evaluate(
        "table",
        str(home / "run"),
        str(tmp_path / "new.csv"),
        metrics=["accuracy"],
        output=str(tmp_path / "out"),
    )
    answers = bertjax.load(str(home / "run")).classify([row[:2] for row in rows])
    correct = [answer["label"] == row[2] for answer, row in zip(answers, rows, strict=True)]
    assert found == {"accuracy": pytest.approx(np.mean(correct)), "examples": 96, "truncated": 0}
    assert 0.7 < np.mean(correct) < 0.95
    written = (tmp_path / "out" / "new.jsonl").read_text().splitlines()
    assert [json.loads(line)["true"] for line in written] == [row[2] for row in rows]
    # Other columns are given, and the metrics are those of the training.
    lines[0] = "one;two;three"
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    words = ["table", "--model", str(home / "run"), "--data", str(tmp_path / "new.csv"), "--json"]
    columns = ["--text", "one", "--text_pair", "two", "--label", "three"]
    capsys.readouterr()
    evaluate.main([*words, *columns])
    again = json.loads(capsys.readouterr().out)
    assert {*again} == {"macro_f1", "matthews", "examples", "truncated"}
    lines[1] = lines[1] + "s"
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"new\.csv:2: label: got 'callings', .*did you mean"):
        evaluate.main([*words, *columns])
    with pytest.raises(UserError, match="got the text columns one, expected 2, as of the model"):
        evaluate.main([*words, *columns[:2], *columns[4:]])
    with pytest.raises(UserError, match=r"label_separator: got ';', expected none, .* single"):
        evaluate.main([*words, *columns, "--label_separator", ";"])


def test_a_released_classifier_keeps_its_classes(home, tmp_path):
    if not (home / "hf").exists():
        export.main(["--model", str(home / "run"), "--output", str(home / "hf")])
    folder = pathlib.Path(shutil.copytree(home / "hf", tmp_path / "hf"))
    whole = json.loads((folder / "config.json").read_text())

    def read(task="", labels=(), **changes):
        changed = {name: value for name, value in (whole | changes).items() if value is not None}
        (folder / "config.json").write_text(json.dumps(changed))
        return importing.read(folder, task=task, labels=labels).config.task

    assert read().texts == ("text", "text_pair")
    bare = {"finetuning_task": None, "problem_type": None}
    with pytest.raises(UserError, match="or --task sequence"):
        read(**bare)
    found = read("sequence", **bare)
    assert (found.texts, found.problem_type) == (("text",), "single_label_classification")
    assert found.labels == ("calling", "naming", "waiting")
    unnamed = bare | {"id2label": None, "label2id": None}
    assert read("sequence", **unnamed).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read("sequence", ("c", "a", "b"), **unnamed).labels == ("c", "a", "b")
    several = read(problem_type="multi_label_classification")
    assert several.problem_type == "multi_label_classification"
    with pytest.raises(UserError, match="outputs of the regression: got 3"):
        read(problem_type="regression")
    with pytest.raises(UserError, match=r"problem_type of config\.json: got 'ranking'"):
        read(problem_type="ranking")
    with pytest.raises(UserError, match="got a, a, b, expected 3 different names"):
        read("sequence", ("a", "a", "b"))


def test_columns_are_those_of_tables_alone():
    with pytest.raises(
        UserError, match="--label: got 'kind', expected none with --config glue:rte"
    ):
        finetune.main(["--config", "glue:rte", "--label", "kind", "--print_config"])


@pytest.mark.slow
def test_transformers_computes_the_same(home, tmp_path):
    transformers = pytest.importorskip("transformers")
    target = tmp_path / "hf"
    export.main(["--model", str(home / "run"), "--output", str(target)])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(target)
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    pipeline = transformers.pipeline(
        "text-classification", model=model, tokenizer=tokenizer, top_k=None, device="cpu"
    )
    (found,) = pipeline([{"text": "async for m", "text_pair": "a m"}])
    (own,) = bertjax.load(str(home / "run" / "seed_0")).classify([("async for m", "a m")])
    probs = {each["label"]: each["score"] for each in found}
    assert probs == pytest.approx(own["probabilities"], abs=1e-4)
    assert np.isclose(sum(probs.values()), 1)
