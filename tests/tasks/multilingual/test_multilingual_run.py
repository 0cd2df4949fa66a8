"""XNLI from fine-tuning on one language to scores by language and an exported model."""

import json
import pathlib

import pytest

from bertjax.commands import export, finetune

SAVED = pathlib.Path(__file__).resolve().parents[2] / "data_fixtures" / "saved_runs"


@pytest.mark.slow
def test_zero_shot_transfer_is_scored_by_language(xnli, tmp_path, capsys):
    workdir = tmp_path / "run"
    finetune.main(
        [
            *("--config", "multilingual:xnli,tiny", "--data", str(xnli)),
            *("--init", str(SAVED / "run"), "--workdir", str(workdir)),
            "--config.keep_checkpoints=true",
        ]
    )
    results = json.loads((workdir / "results.json").read_text())
    scores = results["each_seed"][0]["scores"]
    for split in ("dev", "test"):
        found = [scores[f"{split}/{language}_accuracy"] for language in ("en", "de")]
        assert scores[f"{split}/accuracy"] == sum(found) / 2
    assert scores["dev/score"] == scores["dev/en_accuracy"]
    assert results["examples"] == {"train": 2, "dev": 4, "test": 4}
    written = (workdir / "predictions" / "test.tsv").read_text().splitlines()
    assert [line.split("\t")[:2] for line in written[1:]] == [
        ["en", "0"],
        ["en", "1"],
        ["de", "0"],
        ["de", "1"],
    ]
    capsys.readouterr()
    export.main(["--model", str(workdir), "--output", str(tmp_path / "hf")])
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["id2label"] == {"0": "entailment", "1": "neutral", "2": "contradiction"}
