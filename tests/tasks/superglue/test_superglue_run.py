"""SuperGLUE from fine-tuning to the archive, and predictions of a kept model."""

import json
import pathlib
import zipfile

import pytest

import bertjax
from bertjax.commands import export, finetune, predict, suite

SAVED = pathlib.Path(__file__).resolve().parents[2] / "data_fixtures" / "saved_runs"


@pytest.mark.slow
def test_the_suite_writes_a_table_and_an_archive(data, tmp_path, capfd):
    """A task of text pairs, a candidate task and two spans."""
    words = ["--init", str(SAVED / "run"), "--data", str(data), "--workdir", str(tmp_path / "all")]
    words += ["--tasks", "record,rte,wsc", "--recipe", "tiny", "--seeds", "1"]
    suite.main(["superglue", *words, "--config.num_train_epochs=1"])
    printed, warned = capfd.readouterr()
    assert "average of 3" in printed
    assert (
        "lacks files that the server requires: BoolQ.jsonl, CB.jsonl, COPA.jsonl, MultiRC.jsonl"
        in warned
    )
    with zipfile.ZipFile(tmp_path / "all" / "submission.zip") as archive:
        names = ["ReCoRD", "RTE", "AX-b", "AX-g", "WSC"]
        assert archive.namelist() == [f"{name}.jsonl" for name in names]
        lines = {n: [json.loads(x) for x in archive.read(f"{n}.jsonl").splitlines()] for n in names}
    assert [line["idx"] for line in lines["ReCoRD"]] == [11, 12]
    assert {line["label"] for line in lines["ReCoRD"]} <= {"Anna Berg", "Oslo", "Lyon"}
    assert {line["label"] for line in lines["AX-b"]} <= {"entailment", "not_entailment"}
    assert {line["label"] for line in lines["WSC"]} <= {"True", "False"}
    found = json.loads((tmp_path / "all" / "results.json").read_text())
    record = found["tasks"]["record"]
    assert record["score"] == pytest.approx(
        (record["medians"]["dev/f1"] + record["medians"]["dev/exact_match"]) / 2
    )
    assert found["average"] == pytest.approx(
        sum(task["score"] for task in found["tasks"].values()) / 3
    )


@pytest.mark.slow
def test_a_task_is_learned_predicted_and_exported(data, records, put, tmp_path, capsys):
    premises = ["name b", "name c", "object d", "object f", "name g", "object h"]
    labels = ["entailment" if text.startswith("name") else "not_entailment" for text in premises]
    rows = [
        {"premise": text, "hypothesis": "a target", "idx": number, "label": label}
        for number, (text, label) in enumerate(zip(premises * 4, labels * 4, strict=True))
    ]
    for split in ("train", "val"):
        put(data / "RTE" / f"{split}.jsonl", rows)
    overrides = {
        "num_train_epochs": 20,
        "keep_checkpoints": True,
        "optimizer.learning_rate": 0.01,
        "model.initializer_range": 0.2,
        "model.hidden_dropout_prob": 0.0,
        "max_train_examples": 0,
    }
    workdir = tmp_path / "rte"
    finetune.main(
        [
            *("--config", "superglue:rte,tiny", "--data", str(data)),
            *("--init", f"random:{SAVED / 'run'}", "--workdir", str(workdir)),
            *(f"--config.{name}={value}" for name, value in overrides.items()),
        ]
    )
    results = json.loads((workdir / "results.json").read_text())
    assert results["each_seed"][0]["scores"]["dev/accuracy"] == 1.0
    (tmp_path / "lines").write_text("name k\ta target\nobject k\ta target\n")
    options = ["--input", str(tmp_path / "lines"), "--precision", "float32"]
    capsys.readouterr()
    predict.main(["--model", str(workdir / "seed_0"), *options])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["label"] for answer in found] == ["entailment", "not_entailment"]
    answer = bertjax.load(str(workdir / "seed_0")).classify(("object k", "a target"))
    assert answer["label"] == "not_entailment"
    export.main(["--model", str(workdir), "--output", str(tmp_path / "hf")])
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["id2label"] == {"0": "entailment", "1": "not_entailment"}
    capsys.readouterr()
    predict.main(["--model", str(tmp_path / "hf"), "--input", str(tmp_path / "lines")])
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["label"] for answer in again] == ["entailment", "not_entailment"]
